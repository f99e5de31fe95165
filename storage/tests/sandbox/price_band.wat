;; The filter of docs/kernels.md: a bit for each price between low and high, 64 rows a word.
(module
  (memory (export "memory") 1)
  (func (export "price_band")
    (param $price i32) (param $low f64) (param $high f64) (param $rows i32) (param $selection i32)
    (local $row i32) (local $bit i64) (local $word i64) (local $value f64)
    (block $done
      (loop $next
        (br_if $done (i32.ge_u (local.get $row) (local.get $rows)))
        (local.set $value
          (f64.load (i32.add (local.get $price) (i32.shl (local.get $row) (i32.const 3)))))
        (local.set $bit
          (i64.extend_i32_u
            (i32.and
              (f64.le (local.get $low) (local.get $value))
              (f64.le (local.get $value) (local.get $high)))))
        (local.set $word
          (i64.or
            (local.get $word)
            (i64.shl (local.get $bit) (i64.extend_i32_u (local.get $row)))))
        (local.set $row (i32.add (local.get $row) (i32.const 1)))
        ;; Store the word when it is full, or at the last row.
        (if (i32.or
              (i32.eqz (i32.and (local.get $row) (i32.const 63)))
              (i32.eq (local.get $row) (local.get $rows)))
          (then
            (i64.store
              (i32.add
                (local.get $selection)
                (i32.shl
                  (i32.shr_u (i32.sub (local.get $row) (i32.const 1)) (i32.const 6))
                  (i32.const 3)))
              (local.get $word))
            (local.set $word (i64.const 0))))
        (br $next)))))
