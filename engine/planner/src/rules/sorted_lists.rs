//! `array_agg(x ORDER BY k)` and `string_agg(x, ',' ORDER BY k)` with the speed of those without an order.
//!
//! DataFusion's accumulators keep each row's value and keys as objects of their own, one accumulator a group, and
//! take ten times as long as DuckDB. Here the aggregate collects keys and values as they come, in Arrow, and a function
//! over its lists sorts each.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, LargeStringBuilder, ListArray, UInt32Array};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::compute::{SortOptions, cast, take};
use arrow::datatypes::{DataType, Field, Fields};
use arrow::row::{RowConverter, SortField};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, Result, internal_err};
use datafusion::functions::core::named_struct;
use datafusion::functions_aggregate::array_agg::array_agg_udaf;
use datafusion::logical_expr::expr::{
    AggregateFunction, AggregateFunctionParams, NullTreatment, ScalarFunction,
};
use datafusion::logical_expr::{
    Aggregate, ColumnarValue, Expr, LogicalPlan, LogicalPlanBuilder, ScalarFunctionArgs, ScalarUDF,
    ScalarUDFImpl, Signature, Volatility, lit,
};
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

use crate::walk::WalkPlan as _;

/// No name that SQL can call.
const NAME: &str = "flashmesh:sorted_values";

/// The rule.
#[derive(Debug)]
pub(super) struct SortedLists;

impl OptimizerRule for SortedLists {
    fn name(&self) -> &str {
        "flashmesh_sorted_lists"
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        _config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        plan.change_up_with_subqueries(|node| match node {
            LogicalPlan::Aggregate(aggregate) => sorted_behind(aggregate),
            other => Ok(Transformed::no(other)),
        })
    }
}

/// The aggregation with its lists sorted behind it.
fn sorted_behind(aggregate: Aggregate) -> Result<Transformed<LogicalPlan>> {
    let collected: Vec<_> = aggregate.aggr_expr.iter().map(Collected::of).collect();
    if collected.iter().all(Option::is_none) {
        return Ok(Transformed::no(LogicalPlan::Aggregate(aggregate)));
    }
    let names = aggregate
        .aggr_expr
        .iter()
        .map(|expr| expr.schema_name().to_string());
    let names: Vec<_> = names.collect();
    let lists = aggregate.aggr_expr.into_iter().zip(&collected).zip(&names);
    let lists = lists.map(|((expr, collected), name)| match collected {
        Some(collected) => collected.list.clone().alias(name),
        None => expr,
    });
    let lists = lists.collect();
    let wanted = aggregate.schema;
    let unsorted = Aggregate::try_new(aggregate.input, aggregate.group_expr, lists)?;
    let first = unsorted.schema.fields().len() - collected.len();
    let columns = unsorted.schema.iter().zip(wanted.iter()).enumerate();
    let columns = columns.map(|(place, (column, (relation, field)))| {
        let list = Expr::Column(Column::from(column));
        let collected = place
            .checked_sub(first)
            .and_then(|place| collected[place].as_ref());
        match collected {
            Some(collected) => {
                let sorted = collected.sorted(list);
                sorted.alias_qualified(relation.cloned(), field.name())
            }
            None => list,
        }
    });
    let columns: Vec<_> = columns.collect();
    let plan = LogicalPlanBuilder::from(LogicalPlan::Aggregate(unsorted)).project(columns)?;
    Ok(Transformed::yes(plan.build()?))
}

/// An aggregate of values in an order.
struct Collected {
    /// Collects structs: of the value, and the keys that are others.
    list: Expr,
    /// By which fields to sort, as [`Key::read`] takes it.
    order: String,
    /// What stands between texts that become one.
    between: Option<String>,
}

impl Collected {
    fn of(expr: &Expr) -> Option<Self> {
        let mut expr = expr;
        while let Expr::Alias(alias) = expr {
            expr = &alias.expr;
        }
        let Expr::AggregateFunction(AggregateFunction { func, params }) = expr else {
            return None;
        };
        let AggregateFunctionParams {
            args,
            distinct: false,
            filter,
            order_by,
            null_treatment,
        } = params
        else {
            return None;
        };
        if order_by.is_empty() {
            return None;
        }
        let (value, between) = match (func.name(), args.as_slice()) {
            ("array_agg", [value]) => (value, None),
            ("string_agg", [value, Expr::Literal(between, _)]) => {
                (value, Some(between.try_as_str()??.to_owned()))
            }
            _ => return None,
        };
        let mut fields = vec![value.clone()];
        let keys = order_by.iter().map(|key| {
            let place = fields.iter().position(|field| *field == key.expr);
            let place = place.unwrap_or_else(|| {
                fields.push(key.expr.clone());
                fields.len() - 1
            });
            let direction = if key.asc { 'a' } else { 'd' };
            let nulls = if key.nulls_first { 'f' } else { 'l' };
            format!("{direction}{nulls}{place}")
        });
        let order = keys.collect::<Vec<_>>().join(",");
        let named = fields.into_iter().enumerate();
        let named = named.flat_map(|(place, field)| [lit(format!("c{place}")), field]);
        let fields = ScalarFunction::new_udf(named_struct(), named.collect());
        let leaves_nulls = between.is_some() || *null_treatment == Some(NullTreatment::IgnoreNulls);
        let filter = match (filter.clone(), leaves_nulls) {
            (filter, false) => filter,
            (None, true) => Some(Box::new(value.clone().is_not_null())),
            (Some(filter), true) => Some(Box::new(filter.and(value.clone().is_not_null()))),
        };
        Some(Self {
            list: Expr::AggregateFunction(AggregateFunction::new_udf(
                array_agg_udaf(),
                vec![Expr::ScalarFunction(fields)],
                false,
                filter,
                vec![],
                None,
            )),
            order,
            between,
        })
    }

    fn sorted(&self, list: Expr) -> Expr {
        let mut args = vec![list, lit(self.order.as_str())];
        args.extend(self.between.as_deref().map(lit));
        Expr::ScalarFunction(ScalarFunction::new_udf(function(), args))
    }
}

/// A field to sort by.
struct Key {
    place: usize,
    options: SortOptions,
}

impl Key {
    /// Reads `al0`: ascending, NULL last, by field 0; `df2`: descending, NULL first, by field 2.
    fn read(text: &str) -> Option<Self> {
        let (direction, rest) = text.split_at_checked(1)?;
        let (nulls, place) = rest.split_at_checked(1)?;
        Some(Self {
            place: place.parse().ok()?,
            options: SortOptions {
                descending: direction == "d",
                nulls_first: nulls == "f",
            },
        })
    }
}

/// The function that sorts.
pub(super) fn function() -> Arc<ScalarUDF> {
    Arc::new(ScalarUDF::from(SortedValues {
        signature: Signature::variadic_any(Volatility::Immutable),
    }))
}

/// `flashmesh:sorted_values(list, order)`: the first field of the list's structs, sorted by that and by the others.
/// With a text behind, the texts that these are in one, with that between them.
#[derive(Debug, PartialEq, Eq, Hash)]
struct SortedValues {
    signature: Signature,
}

impl ScalarUDFImpl for SortedValues {
    fn name(&self) -> &str {
        NAME
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        match types {
            [DataType::List(of), _] => match of.data_type() {
                DataType::Struct(fields) if !fields.is_empty() => {
                    Ok(DataType::List(item_of(fields)))
                }
                other => internal_err!("{NAME} takes lists of structs, not of {other}"),
            },
            [DataType::List(_), _, _] => Ok(DataType::LargeUtf8),
            _ => internal_err!("{NAME} takes a list, an order, and what stands between texts"),
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [list, order, between @ ..] = args.args.as_slice() else {
            return internal_err!("{NAME} takes a list and an order");
        };
        let list = list.to_array(args.number_rows)?;
        let list = list.as_list::<i32>();
        let keys = text_of(order)?.split(',').map(Key::read);
        let Some(keys) = keys.collect::<Option<Vec<_>>>() else {
            return internal_err!("{NAME} can't read an order");
        };
        let (offsets, values) = sorted(list, &keys)?;
        let nulls = list.nulls().cloned();
        Ok(ColumnarValue::Array(match between {
            [between] => joined(&offsets, &values, nulls.as_ref(), text_of(between)?)?,
            _ => {
                let item = Arc::new(Field::new_list_field(values.data_type().clone(), true));
                Arc::new(ListArray::try_new(item, offsets, values, nulls)?)
            }
        }))
    }
}

/// The elements of lists of values.
fn item_of(fields: &Fields) -> Arc<Field> {
    Arc::new(Field::new_list_field(fields[0].data_type().clone(), true))
}

fn text_of(constant: &ColumnarValue) -> Result<&str> {
    match constant {
        ColumnarValue::Scalar(value) => match value.try_as_str() {
            Some(Some(text)) => Ok(text),
            _ => internal_err!("{NAME} takes texts, not {value}"),
        },
        ColumnarValue::Array(_) => internal_err!("{NAME} takes constants behind its list"),
    }
}

/// The values of each list in their order, and where each list's end.
fn sorted(list: &ListArray, keys: &[Key]) -> Result<(OffsetBuffer<i32>, ArrayRef)> {
    let Some(structs) = list.values().as_struct_opt() else {
        return internal_err!("{NAME} takes lists of structs");
    };
    // The lists of a batch may be a part of those that all groups have.
    let (first, last) = (list.offsets()[0], list.offsets()[list.len()]);
    let structs = structs.slice(first as usize, (last - first) as usize);
    let mut fields = Vec::with_capacity(keys.len());
    let mut columns = Vec::with_capacity(keys.len());
    for key in keys {
        let Some(column) = structs.columns().get(key.place) else {
            return internal_err!("{NAME} has no field {}", key.place);
        };
        let of = column.data_type().clone();
        fields.push(SortField::new_with_options(of, key.options));
        columns.push(Arc::clone(column));
    }
    let rows = RowConverter::new(fields)?.convert_columns(&columns)?;
    let mut order: Vec<u32> = Vec::with_capacity(structs.len());
    let mut lengths = Vec::with_capacity(list.len());
    for (place, bounds) in list.offsets().windows(2).enumerate() {
        let start = order.len();
        if list.is_valid(place) {
            // Not negative, by Arrow's rules.
            order.extend((bounds[0] - first) as u32..(bounds[1] - first) as u32);
        }
        let of_list = &mut order[start..];
        of_list.sort_by(|a, b| rows.row(*a as usize).cmp(&rows.row(*b as usize)));
        lengths.push(of_list.len());
    }
    let values = take(structs.column(0), &UInt32Array::from(order), None)?;
    Ok((OffsetBuffer::from_lengths(lengths), values))
}

fn joined(
    offsets: &OffsetBuffer<i32>,
    values: &ArrayRef,
    nulls: Option<&NullBuffer>,
    between: &str,
) -> Result<ArrayRef> {
    let texts = cast(values, &DataType::Utf8View)?;
    let texts = texts.as_string_view();
    let mut all = LargeStringBuilder::new();
    let mut text = String::new();
    for (place, bounds) in offsets.windows(2).enumerate() {
        if nulls.is_some_and(|nulls| nulls.is_null(place)) {
            all.append_null();
            continue;
        }
        text.clear();
        for place in bounds[0] as usize..bounds[1] as usize {
            if place > bounds[0] as usize {
                text.push_str(between);
            }
            text.push_str(texts.value(place));
        }
        all.append_value(&text);
    }
    Ok(Arc::new(all.finish()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_they_are_written() {
        let key = Key::read("df12").unwrap();
        assert!(key.options.descending && key.options.nulls_first);
        assert_eq!(key.place, 12);
        let key = Key::read("al0").unwrap();
        assert!(!key.options.descending && !key.options.nulls_first);
        for wrong in ["", "a", "al", "alx", "ä"] {
            assert!(Key::read(wrong).is_none(), "{wrong}");
        }
    }
}
