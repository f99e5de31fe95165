;; The filter of docs/kernels.md, two rows a vector and eight a step.
(module
  (memory (export "memory") 1)
  (func (export "price_band")
    (param $price i32) (param $low f64) (param $high f64) (param $rows i32) (param $selection i32)
    (local $lows v128) (local $highs v128) (local $bit i64) (local $word i64) (local $words i32)
    (local.set $lows (f64x2.splat (local.get $low)))
    (local.set $highs (f64x2.splat (local.get $high)))
    ;; Rows beyond the last read what lies behind the array: their bits are ignored.
    (local.set $words
      (i32.shr_u (i32.add (local.get $rows) (i32.const 63)) (i32.const 6)))
    (block $done
      (br_if $done (i32.eqz (local.get $words)))
      (loop $next
        (local.set $word (i64.const 0))
        (local.set $bit (i64.const 0))
        (loop $step
          (local.set $word (i64.or (local.get $word) (i64.shl
            (i64.or (i64.or (i64.or (i64.extend_i32_u (i64x2.bitmask
            (v128.and
              (f64x2.le (local.get $lows) (v128.load offset=0 (local.get $price)))
              (f64x2.le (v128.load offset=0 (local.get $price)) (local.get $highs))))) (i64.shl (i64.extend_i32_u (i64x2.bitmask
            (v128.and
              (f64x2.le (local.get $lows) (v128.load offset=16 (local.get $price)))
              (f64x2.le (v128.load offset=16 (local.get $price)) (local.get $highs))))) (i64.const 2))) (i64.shl (i64.extend_i32_u (i64x2.bitmask
            (v128.and
              (f64x2.le (local.get $lows) (v128.load offset=32 (local.get $price)))
              (f64x2.le (v128.load offset=32 (local.get $price)) (local.get $highs))))) (i64.const 4))) (i64.shl (i64.extend_i32_u (i64x2.bitmask
            (v128.and
              (f64x2.le (local.get $lows) (v128.load offset=48 (local.get $price)))
              (f64x2.le (v128.load offset=48 (local.get $price)) (local.get $highs))))) (i64.const 6)))
            (local.get $bit))))
          (local.set $price (i32.add (local.get $price) (i32.const 64)))
          (local.set $bit (i64.add (local.get $bit) (i64.const 8)))
          (br_if $step (i64.ne (local.get $bit) (i64.const 64))))
        (i64.store (local.get $selection) (local.get $word))
        (local.set $selection (i32.add (local.get $selection) (i32.const 8)))
        (local.set $words (i32.sub (local.get $words) (i32.const 1)))
        (br_if $next (local.get $words))))))
