//! Which rows come first of those that share a key with another: what is left of new rows of which a table
//! takes no two of one key.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray};
use arrow::datatypes::{DataType, Field, FieldRef};
use arrow::row::{RowConverter, SortField};
use datafusion::common::{Result, ScalarValue, exec_err, plan_err};
use datafusion::logical_expr::function::{PartitionEvaluatorArgs, WindowUDFFieldArgs};
use datafusion::logical_expr::{
    PartitionEvaluator, Signature, Volatility, WindowUDF, WindowUDFImpl,
};

/// A window function over keys, each a struct of its columns: whether a row has no key of a row before it
/// for which it said so. A key with a NULL in it is like no other. SQL does not know it.
pub fn first_of_keys() -> Arc<WindowUDF> {
    Arc::new(WindowUDF::from(FirstOfKeys {
        signature: Signature::variadic_any(Volatility::Immutable),
    }))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct FirstOfKeys {
    signature: Signature,
}

impl WindowUDFImpl for FirstOfKeys {
    fn name(&self) -> &str {
        "flashmesh:first_of_keys"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn partition_evaluator(
        &self,
        arguments: PartitionEvaluatorArgs,
    ) -> Result<Box<dyn PartitionEvaluator>> {
        let keys = arguments.input_fields().iter();
        let keys = keys.map(|field| match field.data_type() {
            DataType::Struct(columns) => {
                let columns = columns.iter();
                let columns = columns.map(|column| SortField::new(column.data_type().clone()));
                Ok(Seen {
                    rows: RowConverter::new(columns.collect())?,
                    keys: HashSet::new(),
                })
            }
            other => plan_err!("a key is a struct of its columns, not {other}"),
        });
        Ok(Box::new(Kept(keys.collect::<Result<_>>()?)))
    }

    fn field(&self, arguments: WindowUDFFieldArgs) -> Result<FieldRef> {
        let name = arguments.name();
        Ok(Arc::new(Field::new(name, DataType::Boolean, false)))
    }
}

/// The rows that were kept.
#[derive(Debug)]
struct Kept(Vec<Seen>);

/// Their values of one key.
#[derive(Debug)]
struct Seen {
    rows: RowConverter,
    keys: HashSet<Box<[u8]>>,
}

impl Seen {
    /// The key of a row; `None` where a part of it is NULL.
    fn key(&self, keys: &ArrayRef, row: usize) -> Result<Option<Box<[u8]>>> {
        let columns = keys.as_struct().columns();
        if columns.iter().any(|column| column.is_null(row)) {
            return Ok(None);
        }
        let columns = columns.iter().map(|column| column.slice(row, 1));
        let rows = self.rows.convert_columns(&columns.collect::<Vec<_>>())?;
        Ok(Some(rows.row(0).data().into()))
    }
}

impl Kept {
    fn keeps(&mut self, keys: &[ArrayRef], row: usize) -> Result<bool> {
        if keys.len() != self.0.len() {
            return exec_err!("a key is missing");
        }
        let keys = self.0.iter().zip(keys).map(|(of, keys)| of.key(keys, row));
        let keys = keys.collect::<Result<Vec<_>>>()?;
        let mut of_kept = self.0.iter().zip(&keys);
        let is_kept =
            !of_kept.any(|(seen, key)| key.as_ref().is_some_and(|key| seen.keys.contains(key)));
        if is_kept {
            for (seen, key) in self.0.iter_mut().zip(keys) {
                seen.keys.extend(key);
            }
        }
        Ok(is_kept)
    }
}

impl PartitionEvaluator for Kept {
    fn is_causal(&self) -> bool {
        true
    }

    fn supports_bounded_execution(&self) -> bool {
        true
    }

    fn evaluate(&mut self, keys: &[ArrayRef], range: &Range<usize>) -> Result<ScalarValue> {
        Ok(ScalarValue::from(self.keeps(keys, range.start)?))
    }

    fn evaluate_all(&mut self, keys: &[ArrayRef], rows: usize) -> Result<ArrayRef> {
        let kept = (0..rows).map(|row| self.keeps(keys, row).map(Some));
        Ok(Arc::new(kept.collect::<Result<BooleanArray>>()?))
    }
}
