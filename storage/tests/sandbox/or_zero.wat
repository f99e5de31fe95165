;; NULL becomes 0, and 0 becomes NULL.
(module
  (memory (export "memory") 1)
  (func (export "or_zero")
    (param $x i32) (param $x_valid i32) (param $rows i32) (param $result i32) (param $valid i32)
    (local $row i32) (local $word i32) (local $bit i64) (local $value i64)
    (block $done
      (loop $next
        (br_if $done (i32.ge_u (local.get $row) (local.get $rows)))
        (local.set $word (i32.shl (i32.shr_u (local.get $row) (i32.const 6)) (i32.const 3)))
        (local.set $bit (i64.shl (i64.const 1) (i64.extend_i32_u (local.get $row))))
        (if (i32.eqz (i32.and (local.get $row) (i32.const 63)))
          (then (i64.store (i32.add (local.get $valid) (local.get $word)) (i64.const 0))))
        (local.set $value
          (if (result i64)
            (i64.eqz
              (i64.and
                (local.get $bit)
                (i64.load (i32.add (local.get $x_valid) (local.get $word)))))
            (then (i64.const 0))
            (else
              (i64.load (i32.add (local.get $x) (i32.shl (local.get $row) (i32.const 3)))))))
        (i64.store
          (i32.add (local.get $result) (i32.shl (local.get $row) (i32.const 3)))
          (local.get $value))
        ;; Valid where the value is not 0, or the argument was NULL.
        (if (i32.or
              (i64.ne (local.get $value) (i64.const 0))
              (i64.eqz
                (i64.and
                  (local.get $bit)
                  (i64.load (i32.add (local.get $x_valid) (local.get $word))))))
          (then
            (i64.store
              (i32.add (local.get $valid) (local.get $word))
              (i64.or
                (local.get $bit)
                (i64.load (i32.add (local.get $valid) (local.get $word)))))))
        (local.set $row (i32.add (local.get $row) (i32.const 1)))
        (br $next)))))
