;; Two calls of another kernel, the second in place.
(module
  (import "flashmesh.kernel" "add_one" (func $add_one (param i32 i32 i32)))
  (memory (export "memory") 1)
  (func (export "add_two") (param $x i32) (param $rows i32) (param $result i32)
    (call $add_one (local.get $x) (local.get $rows) (local.get $result))
    (call $add_one (local.get $result) (local.get $rows) (local.get $result))))
