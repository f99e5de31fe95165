(module
  (memory (export "memory") 1)
  (func (export "add_one") (param $x i32) (param $rows i32) (param $result i32)
    (block $done
      (loop $next
        (br_if $done (i32.eqz (local.get $rows)))
        (i64.store (local.get $result) (i64.add (i64.load (local.get $x)) (i64.const 1)))
        (local.set $x (i32.add (local.get $x) (i32.const 8)))
        (local.set $result (i32.add (local.get $result) (i32.const 8)))
        (local.set $rows (i32.sub (local.get $rows) (i32.const 1)))
        (br $next)))))
