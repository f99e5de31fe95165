//! Results that can't be: every byte that a guest gives is checked.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryViewArray, FixedSizeListArray, Int32Array, Int64Array,
    StringViewArray,
};
use arrow::datatypes::{Float32Type, Float64Type};
use flashmesh_storage::Result;
use flashmesh_storage::kernel::Kernel;

use crate::guest::{Budget, context};
use crate::harness::{Attack, contained, sandbox, scalar};

fn numbers(kernel: &Kernel, budget: &Arc<Budget>) -> Result<()> {
    let arguments = [Arc::new(Int64Array::from(vec![7, 8, 9])) as ArrayRef];
    let found = kernel.evaluate(&arguments, 3, context(budget))?;
    found.to_data().validate_full()?;
    Ok(())
}

/// A scalar with another result type.
fn returns(name: &'static str, data_type: &str, body: &str, reason: &'static str) -> Attack {
    let mut attack = scalar(name, body, reason);
    attack.keys = attack
        .keys
        .replace("RETURNS BIGINT", &format!("RETURNS {data_type}"));
    attack
}

#[test]
fn values_of_fixed_width() {
    let sandbox = sandbox();
    let fill = "(memory.fill (local.get $result) (i32.const 255) (i32.const 24))";
    let second = "(memory.fill (local.get $result) (i32.const 0) (i32.const 24))
                  (i64.store offset=8 (local.get $result) (i64.const 1000))";
    for attack in [
        returns("boolean of 255", "BOOLEAN", fill, "gave 255 as a BOOLEAN"),
        returns("decimal of -1", "DECIMAL(3, 1)", fill, ""),
        returns(
            "decimal over precision",
            "DECIMAL(3, 1)",
            second,
            "beyond the 3 digits",
        ),
        returns(
            "smallest decimal",
            "DECIMAL(18, 0)",
            "(i64.store (local.get $result) (i64.const 0x8000000000000000))",
            "beyond the 18 digits",
        ),
        // All ones are a NaN with a payload; any bits are a date and a timestamp.
        returns("payload of a NaN", "DOUBLE", fill, ""),
        returns("payload of a NaN", "REAL", fill, ""),
        returns("dates", "DATE", fill, ""),
        returns("timestamps", "TIMESTAMP", fill, ""),
        returns("nothing written", "BIGINT", "", ""),
    ] {
        contained(&sandbox, attack, numbers);
    }
}

/// A kernel from text to text with this body.
fn text_kernel(name: &'static str, data_type: &str, body: &str, reason: &'static str) -> Attack {
    Attack {
        name,
        keys: format!("kind = 'scalar'\nsignature = '(t TEXT) RETURNS {data_type}'\n"),
        wat: format!(
            "(module (memory (export \"memory\") 1)
              (func (export \"evil\") (param $offsets i32) (param $bytes i32) (param $rows i32)
                (param $to i32) (param $text i32) (param $capacity i32) {body}))"
        ),
        reason,
    }
}

fn texts(kernel: &Kernel, budget: &Arc<Budget>) -> Result<()> {
    let texts = StringViewArray::from(vec!["aé", "a text of more than twelve bytes"]);
    let arguments = [Arc::new(texts) as ArrayRef];
    let found = kernel.evaluate(&arguments, 2, context(budget))?;
    found.to_data().validate_full()?;
    Ok(())
}

#[test]
fn text_and_its_offsets() {
    let sandbox = sandbox();
    let offsets = |first: &str, second: &str, third: &str| {
        format!(
            "(i32.store (local.get $to) (i32.const {first}))
             (i32.store offset=4 (local.get $to) (i32.const {second}))
             (i32.store offset=8 (local.get $to) (i32.const {third}))
             (i32.store (local.get $text) (i32.const 0x9f9298f0))"
        )
    };
    let utf8 = "not UTF-8";
    for attack in [
        text_kernel(
            "unsorted offsets",
            "TEXT",
            &offsets("0", "8", "4"),
            "go back",
        ),
        text_kernel(
            "unsorted offsets",
            "BLOB",
            &offsets("0", "8", "4"),
            "go back",
        ),
        text_kernel(
            "an offset far out",
            "TEXT",
            &offsets("0", "-1", "4"),
            "go back",
        ),
        text_kernel(
            "first offset",
            "TEXT",
            &offsets("4", "4", "8"),
            "first offset is not 0",
        ),
        text_kernel(
            "not UTF-8",
            "TEXT",
            &offsets("0", "4", "8").replace("0x9f9298f0", "-1"),
            utf8,
        ),
        text_kernel(
            "cut within a character",
            "TEXT",
            &offsets("0", "2", "4"),
            utf8,
        ),
        text_kernel(
            "cut within a character",
            "BLOB",
            &offsets("0", "2", "4"),
            "",
        ),
        text_kernel("one character", "TEXT", &offsets("0", "0", "4"), ""),
        text_kernel(
            "lying length",
            "TEXT",
            &offsets("0", "4", "-1"),
            "asks for 4294967295 bytes",
        ),
        text_kernel(
            "more room with each call",
            "TEXT",
            "(i32.store offset=8 (local.get $to) (i32.add (local.get $capacity) (i32.const 1)))",
            "again and again",
        ),
        text_kernel(
            "room that the memory does not have",
            "TEXT",
            "(i32.store offset=8 (local.get $to) (i32.const 1048576))",
            "can't take",
        ),
    ] {
        contained(&sandbox, attack, texts);
    }
}

#[test]
fn positions_of_a_search() {
    let sandbox = sandbox();
    let search = |name, position: &str, reason| Attack {
        name,
        keys: "kind = 'search'\nsignature = '(t TEXT, p TEXT CONSTANT) RETURNS INTEGER'\n"
            .to_owned(),
        wat: format!(
            "(module (memory (export \"memory\") 1)
              (func (export \"evil\") (param $offsets i32) (param $bytes i32) (param $p i32)
                (param $length i32) (param $rows i32) (param $positions i32)
                (i32.store (local.get $positions) (i32.const {position}))
                (i32.store offset=4 (local.get $positions) (i32.const -1))))"
        ),
        reason,
    };
    let call = |kernel: &Kernel, budget: &Arc<Budget>| {
        let arguments = [
            Arc::new(StringViewArray::from(vec!["abc", "abc"])) as ArrayRef,
            Arc::new(StringViewArray::from(vec!["c"])),
        ];
        kernel.evaluate(&arguments, 2, context(budget)).map(|_| ())
    };
    contained(
        &sandbox,
        search("beyond the row", "4", "at byte 4 of a text of 3"),
        call,
    );
    contained(
        &sandbox,
        search("far beyond", "-2", "at byte 4294967294"),
        call,
    );
    contained(&sandbox, search("at the end", "3", ""), call);
    contained(&sandbox, search("nowhere", "-1", ""), call);
}

#[test]
fn rows_of_a_table() {
    let sandbox = sandbox();
    let table = |name, rows: &str, column: &str, reason| Attack {
        name,
        keys: "kind = 'table'\nsignature = '() RETURNS TABLE (flag BOOLEAN, n BIGINT)'\n"
            .to_owned(),
        wat: format!(
            "(module (memory (export \"memory\") 1)
              (func (export \"evil\") (param $pages i32) (param $count i32) (param $flag i32)
                (param $n i32) (param $capacity i32) (param $rows i32)
                (i32.store (local.get $flag) (i32.const {column}))
                (i32.store (local.get $rows) {rows})))"
        ),
        reason,
    };
    let call = |kernel: &Kernel, budget: &Arc<Budget>| {
        let found = kernel.rows(&[0; 16384], &[], context(budget))?;
        for column in found.columns() {
            column.to_data().validate_full()?;
        }
        Ok(())
    };
    let more = "(i32.add (local.get $capacity) (i32.const 1))";
    let all = "(i32.const -1)";
    let two = "(i32.const 2)";
    contained(
        &sandbox,
        table("rows without end", more, "0", "again and again"),
        call,
    );
    contained(
        &sandbox,
        table("more rows than memory", all, "0", "bytes for the result"),
        call,
    );
    contained(
        &sandbox,
        table("flags", two, "0x0201", "in column 'flag' it gave 2"),
        call,
    );
    contained(&sandbox, table("two rows", two, "0x0101", ""), call);
}

#[test]
fn distances_and_bitmaps() {
    let sandbox = sandbox();
    let distance = Attack {
        name: "distances that are NaN",
        keys: "kind = 'distance'\nsignature = '(a FLOAT[], b FLOAT[]) RETURNS DOUBLE'\n".to_owned(),
        wat: "(module (memory (export \"memory\") 1)
              (func (export \"evil\") (param i32 i32 i32 i32) (param $result i32)
                (memory.fill (local.get $result) (i32.const 255) (i32.const 16))))"
            .to_owned(),
        reason: "",
    };
    contained(&sandbox, distance, |kernel, budget| {
        let vectors = |n| {
            let vector = Some(vec![Some(1.0), Some(2.0)]);
            let vectors =
                FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(vec![vector; n], 2);
            Arc::new(vectors) as ArrayRef
        };
        let found = kernel.distances(&vectors(2), &vectors(1), context(budget))?;
        assert!(found.values().iter().all(|distance| distance.is_nan()));
        assert_eq!(found.data_type(), &arrow::datatypes::DataType::Float64);
        let _ = (&found as &dyn Array).as_primitive::<Float64Type>();
        Ok(())
    });
    let filter = Attack {
        name: "bits beyond the rows",
        keys: "kind = 'filter'\nsignature = '(b BLOB, n INTEGER) RETURNS BOOLEAN'\n".to_owned(),
        wat: "(module (memory (export \"memory\") 1)
              (func (export \"evil\") (param i32 i32 i32 i32) (param $selection i32)
                (i64.store (local.get $selection) (i64.const -1))))"
            .to_owned(),
        reason: "",
    };
    contained(&sandbox, filter, |kernel, budget| {
        let arguments = [
            Arc::new(BinaryViewArray::from(vec![&b"a"[..], b"b", b""])) as ArrayRef,
            Arc::new(Int32Array::from(vec![1, 2, 3])),
        ];
        let found = kernel.evaluate(&arguments, 3, context(budget))?;
        assert_eq!(found.as_boolean().true_count(), 3);
        Ok(())
    });
}
