;; The Manhattan distance of float vectors.
(module
  (memory (export "memory") 1)
  (func (export "l1")
    (param $a i32) (param $b i32) (param $dimension i32) (param $rows i32) (param $result i32)
    (local $i i32) (local $sum f64)
    (block $done
      (loop $row
        (br_if $done (i32.eqz (local.get $rows)))
        (local.set $sum (f64.const 0))
        (local.set $i (i32.const 0))
        (block $end
          (loop $element
            (br_if $end (i32.ge_u (local.get $i) (local.get $dimension)))
            (local.set $sum
              (f64.add (local.get $sum)
                (f64.abs
                  (f64.sub
                    (f64.promote_f32 (f32.load (local.get $a)))
                    (f64.promote_f32
                      (f32.load
                        (i32.add (local.get $b) (i32.shl (local.get $i) (i32.const 2)))))))))
            (local.set $a (i32.add (local.get $a) (i32.const 4)))
            (local.set $i (i32.add (local.get $i) (i32.const 1)))
            (br $element)))
        (f64.store (local.get $result) (local.get $sum))
        (local.set $result (i32.add (local.get $result) (i32.const 8)))
        (local.set $rows (i32.sub (local.get $rows) (i32.const 1)))
        (br $row)))))
