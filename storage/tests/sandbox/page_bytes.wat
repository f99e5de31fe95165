;; Of each page the bytes 0 and 1, when the first is at least `least`.
(module
  (memory (export "memory") 1)
  (func (export "page_bytes")
    (param $pages i32) (param $count i32) (param $least i32)
    (param $first i32) (param $second i32) (param $capacity i32) (param $rows i32)
    (local $i i32) (local $found i32) (local $page i32) (local $write i32)
    ;; Twice: to count, then to write if all have room.
    (loop $pass
      (local.set $i (i32.const 0))
      (local.set $found (i32.const 0))
      (block $end
        (loop $next
          (br_if $end (i32.ge_u (local.get $i) (local.get $count)))
          (local.set $page (i32.add (local.get $pages) (i32.mul (local.get $i) (i32.const 8192))))
          (local.set $i (i32.add (local.get $i) (i32.const 1)))
          (br_if $next (i32.lt_u (i32.load8_u (local.get $page)) (local.get $least)))
          (if (local.get $write)
            (then
              (i32.store
                (i32.add (local.get $first) (i32.shl (local.get $found) (i32.const 2)))
                (i32.load8_u (local.get $page)))
              (i64.store
                (i32.add (local.get $second) (i32.shl (local.get $found) (i32.const 3)))
                (i64.load8_u offset=1 (local.get $page)))))
          (local.set $found (i32.add (local.get $found) (i32.const 1)))
          (br $next)))
      (i32.store (local.get $rows) (local.get $found))
      (if (i32.and
            (i32.eqz (local.get $write))
            (i32.le_u (local.get $found) (local.get $capacity)))
        (then
          (local.set $write (i32.const 1))
          (br $pass))))))
