;; The mean of doubles. A state is a sum and a count.
(module
  (memory (export "memory") 1)
  (func (export "mean_init") (param $states i32) (param $groups i32)
    (memory.fill (local.get $states) (i32.const 0) (i32.shl (local.get $groups) (i32.const 4))))
  (func (export "mean_update")
    (param $x i32) (param $group i32) (param $rows i32) (param $states i32) (param $groups i32)
    (local $state i32)
    (block $done
      (loop $next
        (br_if $done (i32.eqz (local.get $rows)))
        (local.set $state
          (i32.add (local.get $states) (i32.shl (i32.load (local.get $group)) (i32.const 4))))
        (f64.store (local.get $state)
          (f64.add (f64.load (local.get $state)) (f64.load (local.get $x))))
        (i64.store offset=8 (local.get $state)
          (i64.add (i64.load offset=8 (local.get $state)) (i64.const 1)))
        (local.set $x (i32.add (local.get $x) (i32.const 8)))
        (local.set $group (i32.add (local.get $group) (i32.const 4)))
        (local.set $rows (i32.sub (local.get $rows) (i32.const 1)))
        (br $next))))
  (func (export "mean_merge") (param $states i32) (param $others i32) (param $groups i32)
    (block $done
      (loop $next
        (br_if $done (i32.eqz (local.get $groups)))
        (f64.store (local.get $states)
          (f64.add (f64.load (local.get $states)) (f64.load (local.get $others))))
        (i64.store offset=8 (local.get $states)
          (i64.add (i64.load offset=8 (local.get $states)) (i64.load offset=8 (local.get $others))))
        (local.set $states (i32.add (local.get $states) (i32.const 16)))
        (local.set $others (i32.add (local.get $others) (i32.const 16)))
        (local.set $groups (i32.sub (local.get $groups) (i32.const 1)))
        (br $next))))
  (func (export "mean_finish")
    (param $states i32) (param $groups i32) (param $result i32) (param $valid i32)
    (local $group i32) (local $count i64) (local $word i32)
    (block $done
      (loop $next
        (br_if $done (i32.ge_u (local.get $group) (local.get $groups)))
        (local.set $word
          (i32.add (local.get $valid)
            (i32.shl (i32.shr_u (local.get $group) (i32.const 6)) (i32.const 3))))
        (if (i32.eqz (i32.and (local.get $group) (i32.const 63)))
          (then (i64.store (local.get $word) (i64.const 0))))
        (local.set $count (i64.load offset=8 (local.get $states)))
        (if (i64.ne (local.get $count) (i64.const 0))
          (then
            (i64.store (local.get $word)
              (i64.or (i64.load (local.get $word))
                (i64.shl (i64.const 1) (i64.extend_i32_u (local.get $group)))))
            (f64.store (local.get $result)
              (f64.div (f64.load (local.get $states)) (f64.convert_i64_u (local.get $count))))))
        (local.set $states (i32.add (local.get $states) (i32.const 16)))
        (local.set $result (i32.add (local.get $result) (i32.const 8)))
        (local.set $group (i32.add (local.get $group) (i32.const 1)))
        (br $next)))))
