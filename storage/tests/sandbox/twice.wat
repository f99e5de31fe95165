;; Each text twice. What does not fit is asked for.
(module
  (memory (export "memory") 1)
  (func (export "twice")
    (param $offsets i32) (param $bytes i32) (param $rows i32)
    (param $result_offsets i32) (param $result_bytes i32) (param $capacity i32)
    (local $row i32) (local $start i32) (local $length i32) (local $to i32)
    (local.set $length
      (i32.shl
        (i32.load (i32.add (local.get $offsets) (i32.shl (local.get $rows) (i32.const 2))))
        (i32.const 1)))
    (if (i32.gt_u (local.get $length) (local.get $capacity))
      (then
        (i32.store
          (i32.add (local.get $result_offsets) (i32.shl (local.get $rows) (i32.const 2)))
          (local.get $length))
        (return)))
    (i32.store (local.get $result_offsets) (i32.const 0))
    (block $done
      (loop $next
        (br_if $done (i32.ge_u (local.get $row) (local.get $rows)))
        (local.set $start (i32.load (local.get $offsets)))
        (local.set $length (i32.sub (i32.load offset=4 (local.get $offsets)) (local.get $start)))
        (memory.copy
          (i32.add (local.get $result_bytes) (local.get $to))
          (i32.add (local.get $bytes) (local.get $start))
          (local.get $length))
        (local.set $to (i32.add (local.get $to) (local.get $length)))
        (memory.copy
          (i32.add (local.get $result_bytes) (local.get $to))
          (i32.add (local.get $bytes) (local.get $start))
          (local.get $length))
        (local.set $to (i32.add (local.get $to) (local.get $length)))
        (local.set $result_offsets (i32.add (local.get $result_offsets) (i32.const 4)))
        (i32.store (local.get $result_offsets) (local.get $to))
        (local.set $offsets (i32.add (local.get $offsets) (i32.const 4)))
        (local.set $row (i32.add (local.get $row) (i32.const 1)))
        (br $next)))))
