//! Sequences that have a name: `CREATE SEQUENCE s`, `nextval('s')`, `currval('s')`, `DROP SEQUENCE s`.
//!
//! A sequence is a table of one identity column, whose numbers are given by these functions rather than to rows.

use std::collections::HashMap;
use std::fmt::Display;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Weak};

use arrow::array::Int64Array;
use arrow::datatypes::DataType;
use datafusion::common::{ScalarValue, plan_err};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion::prelude::SessionContext;
use flashmesh_storage::capability::Right;
use flashmesh_storage::table::{Generated, TableSnapshot};
use parking_lot::Mutex;

use crate::catalog::FlashCatalog;
use crate::clauses::NEXT;
use crate::error::{Error, Result};
use crate::generated::next_values;
use crate::grants::Principal;
use crate::names::table_reference;

/// What counts, if a table is a sequence.
fn sequence_of(table: &TableSnapshot) -> Option<Generated> {
    match table.schema.fields().as_ref() {
        [only] if only.name() == NEXT => table.generated(0).filter(|generated| generated.always),
        _ => None,
    }
}

fn no_sequence(name: &dyn Display) -> Error {
    Error::usage(format!("'{name}' is a table, and no sequence"))
}

/// Refuses to drop a table as if it were a sequence.
///
/// # Errors
/// [`Error::Usage`].
pub(crate) fn check_sequence(name: &dyn Display, table: &TableSnapshot) -> Result<()> {
    match sequence_of(table) {
        Some(_) => Ok(()),
        None => Err(no_sequence(name)),
    }
}

/// Makes a session's context know its functions.
pub(crate) fn tell_sequences(
    context: &SessionContext,
    catalog: &Arc<FlashCatalog>,
    principal: &Arc<Principal>,
) {
    let sequences = Arc::new(Sequences {
        catalog: Arc::downgrade(catalog),
        principal: Arc::clone(principal),
        given: Mutex::default(),
    });
    for name in [NEXT, "currval"] {
        context.register_udf(ScalarUDF::new_from_impl(Function {
            name,
            sequences: Arc::clone(&sequences),
            signature: Signature::string(1, Volatility::Volatile),
        }));
    }
}

/// The sequences that a session sees.
#[derive(Debug)]
struct Sequences {
    /// Plans outlive their session, and are to hold no database open.
    catalog: Weak<FlashCatalog>,
    principal: Arc<Principal>,
    /// What each gave last to this session.
    given: Mutex<HashMap<u32, i64>>,
}

impl Sequences {
    fn catalog(&self) -> Result<Arc<FlashCatalog>> {
        let catalog = self.catalog.upgrade();
        catalog.ok_or_else(|| Error::usage("the session of this query has ended"))
    }

    fn named(&self, name: &str, options: &ConfigOptions, right: Right) -> Result<Generated> {
        let catalog = self.catalog()?;
        let defaults = &options.catalog;
        let of = table_reference(name);
        let of = of.resolve(&defaults.default_catalog, &defaults.default_schema);
        let workspace = catalog.workspace();
        let schema = workspace.place_of(&of.schema, &of.table);
        self.principal.check(right, schema, &of.table)?;
        let schema = catalog.flash_schema(schema);
        let table = schema.and_then(|schema| schema.snapshot(&of.table).ok());
        let table = table.ok_or_else(|| {
            Error::usage(format!(
                "there is no sequence '{name}'; CREATE SEQUENCE {name} makes it"
            ))
        })?;
        sequence_of(&table).ok_or_else(|| no_sequence(&name))
    }

    fn next(&self, name: &str, options: &ConfigOptions, count: usize) -> Result<Int64Array> {
        let sequence = self.named(name, options, Right::Write)?;
        let catalog = self.catalog()?;
        let database = catalog.workspace().database();
        let values = next_values(database, sequence, count, || format!("sequence '{name}'"))?;
        if let Some(last) = values.values().last() {
            self.given.lock().insert(sequence.sequence, *last);
        }
        Ok(values)
    }

    fn current(&self, name: &str, options: &ConfigOptions) -> Result<i64> {
        let sequence = self.named(name, options, Right::Read)?;
        let given = self.given.lock().get(&sequence.sequence).copied();
        given.ok_or_else(|| {
            Error::usage(format!(
                "sequence '{name}' has given nothing in this session; SELECT nextval('{name}') comes first"
            ))
        })
    }
}

#[derive(Debug)]
struct Function {
    name: &'static str,
    sequences: Arc<Sequences>,
    signature: Signature,
}

impl PartialEq for Function {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && Arc::ptr_eq(&self.sequences, &other.sequences)
    }
}

impl Eq for Function {}

impl Hash for Function {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl ScalarUDFImpl for Function {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> datafusion::error::Result<DataType> {
        Ok(DataType::Int64)
    }

    fn invoke_with_args(
        &self,
        args: ScalarFunctionArgs,
    ) -> datafusion::error::Result<ColumnarValue> {
        let name = match args.args.first() {
            Some(ColumnarValue::Scalar(name)) => name.try_as_str().flatten(),
            _ => None,
        };
        let Some(name) = name else {
            return plan_err!("{} takes the name of a sequence in quotes", self.name);
        };
        if self.name == NEXT {
            let values = self
                .sequences
                .next(name, &args.config_options, args.number_rows);
            return Ok(ColumnarValue::Array(Arc::new(values?)));
        }
        let value = self.sequences.current(name, &args.config_options)?;
        Ok(ColumnarValue::Scalar(ScalarValue::Int64(Some(value))))
    }
}
