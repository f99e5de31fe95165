;; The filter of docs/kernels.md with vectors: a word of 64 rows a step. Behind the last row it reads
;; up to 504 bytes that are not its own, but within its memory: those bits are ignored.
(module
  (memory (export "memory") 1)
  (func (export "price_band")
    (param $price i32) (param $low f64) (param $high f64) (param $rows i32) (param $selection i32)
    (local $lows v128) (local $highs v128) (local $pair v128) (local $word i64) (local $words i32)
    (local.set $lows (f64x2.splat (local.get $low)))
    (local.set $highs (f64x2.splat (local.get $high)))
    (local.set $words (i32.shr_u (i32.add (local.get $rows) (i32.const 63)) (i32.const 6)))
    (block $done
      (br_if $done (i32.eqz (local.get $words)))
      (loop $next
        (local.set $word (i64.extend_i32_u (i64x2.bitmask (v128.and
          (f64x2.le (local.get $lows) (local.tee $pair (v128.load (local.get $price))))
          (f64x2.le (local.get $pair) (local.get $highs))))))
        (local.set $word (i64.or (local.get $word) (i64.shl (i64.extend_i32_u (i64x2.bitmask (v128.and
          (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=16 (local.get $price))))
          (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 2))))
        (local.set $word (i64.or (local.get $word) (i64.shl (i64.extend_i32_u (i64x2.bitmask (v128.and
          (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=32 (local.get $price))))
          (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 4))))
        (local.set $word (i64.or (local.get $word) (i64.shl (i64.extend_i32_u (i64x2.bitmask (v128.and
          (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=48 (local.get $price))))
          (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 6))))
        (local.set $word (i64.or (local.get $word) (i64.shl (i64.extend_i32_u (i64x2.bitmask (v128.and
          (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=64 (local.get $price))))
          (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 8))))
        (local.set $word (i64.or (local.get $word) (i64.shl (i64.extend_i32_u (i64x2.bitmask (v128.and
          (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=80 (local.get $price))))
          (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 10))))
        (local.set $word (i64.or (local.get $word) (i64.shl (i64.extend_i32_u (i64x2.bitmask (v128.and
          (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=96 (local.get $price))))
          (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 12))))
        (local.set $word (i64.or (local.get $word) (i64.shl (i64.extend_i32_u (i64x2.bitmask (v128.and
          (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=112 (local.get $price))))
          (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 14))))
        (local.set $word (i64.or (local.get $word) (i64.shl (i64.extend_i32_u (i64x2.bitmask (v128.and
          (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=128 (local.get $price))))
          (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 16))))
        (local.set $word (i64.or (local.get $word) (i64.shl (i64.extend_i32_u (i64x2.bitmask (v128.and
          (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=144 (local.get $price))))
          (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 18))))
        (local.set $word (i64.or (local.get $word) (i64.shl (i64.extend_i32_u (i64x2.bitmask (v128.and
          (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=160 (local.get $price))))
          (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 20))))
        (local.set $word (i64.or (local.get $word) (i64.shl (i64.extend_i32_u (i64x2.bitmask (v128.and
          (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=176 (local.get $price))))
          (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 22))))
        (local.set $word (i64.or (local.get $word) (i64.shl (i64.extend_i32_u (i64x2.bitmask (v128.and
          (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=192 (local.get $price))))
          (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 24))))
        (local.set $word (i64.or (local.get $word) (i64.shl (i64.extend_i32_u (i64x2.bitmask (v128.and
          (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=208 (local.get $price))))
          (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 26))))
        (local.set $word (i64.or (local.get $word) (i64.shl (i64.extend_i32_u (i64x2.bitmask (v128.and
          (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=224 (local.get $price))))
          (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 28))))
        (local.set $word (i64.or (local.get $word) (i64.shl (i64.extend_i32_u (i64x2.bitmask (v128.and
          (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=240 (local.get $price))))
          (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 30))))
        (local.set $word (i64.or (local.get $word) (i64.shl (i64.extend_i32_u (i64x2.bitmask (v128.and
          (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=256 (local.get $price))))
          (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 32))))
        (local.set $word (i64.or (local.get $word) (i64.shl (i64.extend_i32_u (i64x2.bitmask (v128.and
          (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=272 (local.get $price))))
          (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 34))))
        (local.set $word (i64.or (local.get $word) (i64.shl (i64.extend_i32_u (i64x2.bitmask (v128.and
          (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=288 (local.get $price))))
          (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 36))))
        (local.set $word (i64.or (local.get $word) (i64.shl (i64.extend_i32_u (i64x2.bitmask (v128.and
          (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=304 (local.get $price))))
          (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 38))))
        (local.set $word (i64.or (local.get $word) (i64.shl (i64.extend_i32_u (i64x2.bitmask (v128.and
          (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=320 (local.get $price))))
          (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 40))))
        (local.set $word (i64.or (local.get $word) (i64.shl (i64.extend_i32_u (i64x2.bitmask (v128.and
          (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=336 (local.get $price))))
          (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 42))))
        (local.set $word (i64.or (local.get $word) (i64.shl (i64.extend_i32_u (i64x2.bitmask (v128.and
          (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=352 (local.get $price))))
          (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 44))))
        (local.set $word (i64.or (local.get $word) (i64.shl (i64.extend_i32_u (i64x2.bitmask (v128.and
          (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=368 (local.get $price))))
          (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 46))))
        (local.set $word (i64.or (local.get $word) (i64.shl (i64.extend_i32_u (i64x2.bitmask (v128.and
          (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=384 (local.get $price))))
          (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 48))))
        (local.set $word (i64.or (local.get $word) (i64.shl (i64.extend_i32_u (i64x2.bitmask (v128.and
          (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=400 (local.get $price))))
          (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 50))))
        (local.set $word (i64.or (local.get $word) (i64.shl (i64.extend_i32_u (i64x2.bitmask (v128.and
          (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=416 (local.get $price))))
          (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 52))))
        (local.set $word (i64.or (local.get $word) (i64.shl (i64.extend_i32_u (i64x2.bitmask (v128.and
          (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=432 (local.get $price))))
          (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 54))))
        (local.set $word (i64.or (local.get $word) (i64.shl (i64.extend_i32_u (i64x2.bitmask (v128.and
          (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=448 (local.get $price))))
          (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 56))))
        (local.set $word (i64.or (local.get $word) (i64.shl (i64.extend_i32_u (i64x2.bitmask (v128.and
          (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=464 (local.get $price))))
          (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 58))))
        (local.set $word (i64.or (local.get $word) (i64.shl (i64.extend_i32_u (i64x2.bitmask (v128.and
          (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=480 (local.get $price))))
          (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 60))))
        (local.set $word (i64.or (local.get $word) (i64.shl (i64.extend_i32_u (i64x2.bitmask (v128.and
          (f64x2.le (local.get $lows) (local.tee $pair (v128.load offset=496 (local.get $price))))
          (f64x2.le (local.get $pair) (local.get $highs))))) (i64.const 62))))
        (i64.store (local.get $selection) (local.get $word))
        (local.set $price (i32.add (local.get $price) (i32.const 512)))
        (local.set $selection (i32.add (local.get $selection) (i32.const 8)))
        (local.set $words (i32.sub (local.get $words) (i32.const 1)))
        (br_if $next (local.get $words))))))
