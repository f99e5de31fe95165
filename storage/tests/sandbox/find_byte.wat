;; Where the first byte of the pattern is first found.
(module
  (memory (export "memory") 1)
  (func (export "find_byte")
    (param $offsets i32) (param $bytes i32) (param $pattern i32) (param $pattern_length i32)
    (param $rows i32) (param $positions i32)
    (local $row i32) (local $at i32) (local $end i32) (local $start i32) (local $found i32)
    (block $done
      (loop $next
        (br_if $done (i32.ge_u (local.get $row) (local.get $rows)))
        (local.set $start
          (i32.load (i32.add (local.get $offsets) (i32.shl (local.get $row) (i32.const 2)))))
        (local.set $end
          (i32.load offset=4
            (i32.add (local.get $offsets) (i32.shl (local.get $row) (i32.const 2)))))
        (local.set $at (local.get $start))
        (local.set $found (i32.const -1))
        (block $searched
          (loop $byte
            (br_if $searched (i32.ge_u (local.get $at) (local.get $end)))
            (if (i32.eq
                  (i32.load8_u (i32.add (local.get $bytes) (local.get $at)))
                  (i32.load8_u (local.get $pattern)))
              (then
                (local.set $found (i32.sub (local.get $at) (local.get $start)))
                (br $searched)))
            (local.set $at (i32.add (local.get $at) (i32.const 1)))
            (br $byte)))
        (i32.store
          (i32.add (local.get $positions) (i32.shl (local.get $row) (i32.const 2)))
          (local.get $found))
        (local.set $row (i32.add (local.get $row) (i32.const 1)))
        (br $next)))))
