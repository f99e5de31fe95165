;; The filter of docs/kernels.md with vectors: a word of 64 rows a step.
(module
  (memory (export "memory") 1)
  (func (export "price_band")
    (param $price i32) (param $low f64) (param $high f64) (param $rows i32) (param $selection i32)
    (local $lows v128) (local $highs v128) (local $pair v128) (local $words i32)
    (local.set $lows (f64x2.splat (local.get $low)))
    (local.set $highs (f64x2.splat (local.get $high)))
    (local.set $words (i32.shr_u (i32.add (local.get $rows) (i32.const 63)) (i32.const 6)))
    (loop $next
      (i64.store (local.get $selection) (i64.or (i64.or (i64.or (i64.or (i64.or (i64.or (i64.or (i64.or (i64.or (i64.or (i64.or (i64.or (i64.or (i64.or (i64.or (i64.or (i64.or (i64.or (i64.or (i64.or (i64.or (i64.or (i64.or (i64.or (i64.or (i64.or (i64.or (i64.or (i64.or (i64.or (i64.or (i64.extend_i32_u (i64x2.bitmask
          (v128.and
            (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=0 (local.get $price))))
            (f64x2.le (local.get $pair) (local.get $highs))))) (i64.shl (i64.extend_i32_u (i64x2.bitmask
          (v128.and
            (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=16 (local.get $price))))
            (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 2))) (i64.shl (i64.extend_i32_u (i64x2.bitmask
          (v128.and
            (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=32 (local.get $price))))
            (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 4))) (i64.shl (i64.extend_i32_u (i64x2.bitmask
          (v128.and
            (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=48 (local.get $price))))
            (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 6))) (i64.shl (i64.extend_i32_u (i64x2.bitmask
          (v128.and
            (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=64 (local.get $price))))
            (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 8))) (i64.shl (i64.extend_i32_u (i64x2.bitmask
          (v128.and
            (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=80 (local.get $price))))
            (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 10))) (i64.shl (i64.extend_i32_u (i64x2.bitmask
          (v128.and
            (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=96 (local.get $price))))
            (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 12))) (i64.shl (i64.extend_i32_u (i64x2.bitmask
          (v128.and
            (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=112 (local.get $price))))
            (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 14))) (i64.shl (i64.extend_i32_u (i64x2.bitmask
          (v128.and
            (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=128 (local.get $price))))
            (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 16))) (i64.shl (i64.extend_i32_u (i64x2.bitmask
          (v128.and
            (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=144 (local.get $price))))
            (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 18))) (i64.shl (i64.extend_i32_u (i64x2.bitmask
          (v128.and
            (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=160 (local.get $price))))
            (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 20))) (i64.shl (i64.extend_i32_u (i64x2.bitmask
          (v128.and
            (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=176 (local.get $price))))
            (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 22))) (i64.shl (i64.extend_i32_u (i64x2.bitmask
          (v128.and
            (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=192 (local.get $price))))
            (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 24))) (i64.shl (i64.extend_i32_u (i64x2.bitmask
          (v128.and
            (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=208 (local.get $price))))
            (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 26))) (i64.shl (i64.extend_i32_u (i64x2.bitmask
          (v128.and
            (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=224 (local.get $price))))
            (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 28))) (i64.shl (i64.extend_i32_u (i64x2.bitmask
          (v128.and
            (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=240 (local.get $price))))
            (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 30))) (i64.shl (i64.extend_i32_u (i64x2.bitmask
          (v128.and
            (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=256 (local.get $price))))
            (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 32))) (i64.shl (i64.extend_i32_u (i64x2.bitmask
          (v128.and
            (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=272 (local.get $price))))
            (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 34))) (i64.shl (i64.extend_i32_u (i64x2.bitmask
          (v128.and
            (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=288 (local.get $price))))
            (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 36))) (i64.shl (i64.extend_i32_u (i64x2.bitmask
          (v128.and
            (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=304 (local.get $price))))
            (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 38))) (i64.shl (i64.extend_i32_u (i64x2.bitmask
          (v128.and
            (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=320 (local.get $price))))
            (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 40))) (i64.shl (i64.extend_i32_u (i64x2.bitmask
          (v128.and
            (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=336 (local.get $price))))
            (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 42))) (i64.shl (i64.extend_i32_u (i64x2.bitmask
          (v128.and
            (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=352 (local.get $price))))
            (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 44))) (i64.shl (i64.extend_i32_u (i64x2.bitmask
          (v128.and
            (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=368 (local.get $price))))
            (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 46))) (i64.shl (i64.extend_i32_u (i64x2.bitmask
          (v128.and
            (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=384 (local.get $price))))
            (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 48))) (i64.shl (i64.extend_i32_u (i64x2.bitmask
          (v128.and
            (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=400 (local.get $price))))
            (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 50))) (i64.shl (i64.extend_i32_u (i64x2.bitmask
          (v128.and
            (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=416 (local.get $price))))
            (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 52))) (i64.shl (i64.extend_i32_u (i64x2.bitmask
          (v128.and
            (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=432 (local.get $price))))
            (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 54))) (i64.shl (i64.extend_i32_u (i64x2.bitmask
          (v128.and
            (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=448 (local.get $price))))
            (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 56))) (i64.shl (i64.extend_i32_u (i64x2.bitmask
          (v128.and
            (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=464 (local.get $price))))
            (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 58))) (i64.shl (i64.extend_i32_u (i64x2.bitmask
          (v128.and
            (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=480 (local.get $price))))
            (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 60))) (i64.shl (i64.extend_i32_u (i64x2.bitmask
          (v128.and
            (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=496 (local.get $price))))
            (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 62))))
      (local.set $price (i32.add (local.get $price) (i32.const 512)))
      (local.set $selection (i32.add (local.get $selection) (i32.const 8)))
      (local.set $words (i32.sub (local.get $words) (i32.const 1)))
      (br_if $next (local.get $words)))))
