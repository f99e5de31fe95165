//! What follows from a Program's shape: types, nullability, the columns that it uses.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};

use crate::{Aggregate, AggregateFunction, Expr, InputColumn, Output, Program};

impl Expr {
    /// The type of the expression over these columns. It trusts the types that the expression
    /// states; [`verify()`](crate::verify()) checks them. `DataType::Null` for a column that
    /// isn't there.
    pub fn data_type(&self, columns: &[InputColumn]) -> DataType {
        match self {
            Self::Column(index) => columns
                .get(*index as usize)
                .map_or(DataType::Null, |column| column.data_type.clone()),
            Self::Literal(literal) => literal.data_type.clone(),
            Self::Compare { .. }
            | Self::And(_)
            | Self::Or(_)
            | Self::Not(_)
            | Self::IsNull(_)
            | Self::InList { .. }
            | Self::Like { .. }
            | Self::Regex { .. }
            | Self::ContainsAny { .. } => DataType::Boolean,
            Self::Arithmetic { data_type, .. }
            | Self::Cast { data_type, .. }
            | Self::Case { data_type, .. }
            | Self::Kernel { data_type, .. } => data_type.clone(),
            Self::DatePart { .. } | Self::Position { .. } => DataType::Int32,
            Self::Substring { .. } => DataType::Utf8View,
            Self::Distance { metric, .. } => metric.data_type(),
        }
    }

    /// Whether the expression can be NULL; `false` is certain, `true` may be cautious.
    pub fn nullable(&self, columns: &[InputColumn]) -> bool {
        match self {
            Self::Column(index) => columns.get(*index as usize).is_none_or(|c| c.nullable),
            Self::Literal(literal) => literal.value.is_null(),
            Self::IsNull(_) => false,
            // Days beyond the calendar have no fields, and a kernel gives NULL when it likes to.
            Self::DatePart { .. } | Self::Kernel { .. } => true,
            // An element of a vector may be NULL where the vector isn't.
            Self::Distance { expr, .. } => {
                expr.nullable(columns)
                    || matches!(
                        expr.data_type(columns),
                        DataType::FixedSizeList(child, _) if child.is_nullable()
                    )
            }
            Self::InList { expr, list, .. } => {
                expr.nullable(columns) || list.iter().any(|value| value.is_null())
            }
            Self::Case {
                branches,
                otherwise,
                ..
            } => {
                branches.iter().any(|(_, value)| value.nullable(columns))
                    || otherwise
                        .as_ref()
                        .is_none_or(|value| value.nullable(columns))
            }
            _ => {
                let mut nullable = false;
                self.for_each_child(&mut |child| nullable |= child.nullable(columns));
                nullable
            }
        }
    }

    /// Calls `visit` with each operand, in order.
    pub fn for_each_child<'a>(&'a self, visit: &mut dyn FnMut(&'a Expr)) {
        match self {
            Self::Column(_) | Self::Literal(_) => {}
            Self::Compare { left, right, .. } | Self::Arithmetic { left, right, .. } => {
                visit(left);
                visit(right);
            }
            Self::And(operands)
            | Self::Or(operands)
            | Self::Kernel {
                arguments: operands,
                ..
            } => operands.iter().for_each(visit),
            Self::Not(expr)
            | Self::IsNull(expr)
            | Self::InList { expr, .. }
            | Self::Like { expr, .. }
            | Self::Cast { expr, .. }
            | Self::DatePart { expr, .. }
            | Self::Substring { expr, .. }
            | Self::Position { expr, .. }
            | Self::Regex { expr, .. }
            | Self::ContainsAny { expr, .. }
            | Self::Distance { expr, .. } => visit(expr),
            Self::Case {
                branches,
                otherwise,
                ..
            } => {
                for (condition, value) in branches {
                    visit(condition);
                    visit(value);
                }
                if let Some(otherwise) = otherwise {
                    visit(otherwise);
                }
            }
        }
    }

    /// Calls `visit` with each operand, in order, to be changed in place.
    pub fn for_each_child_mut(&mut self, visit: &mut dyn FnMut(&mut Expr)) {
        match self {
            Self::Column(_) | Self::Literal(_) => {}
            Self::Compare { left, right, .. } | Self::Arithmetic { left, right, .. } => {
                visit(left);
                visit(right);
            }
            Self::And(operands)
            | Self::Or(operands)
            | Self::Kernel {
                arguments: operands,
                ..
            } => operands.iter_mut().for_each(visit),
            Self::Not(expr)
            | Self::IsNull(expr)
            | Self::InList { expr, .. }
            | Self::Like { expr, .. }
            | Self::Cast { expr, .. }
            | Self::DatePart { expr, .. }
            | Self::Substring { expr, .. }
            | Self::Position { expr, .. }
            | Self::Regex { expr, .. }
            | Self::ContainsAny { expr, .. }
            | Self::Distance { expr, .. } => visit(expr),
            Self::Case {
                branches,
                otherwise,
                ..
            } => {
                for (condition, value) in branches {
                    visit(condition);
                    visit(value);
                }
                if let Some(otherwise) = otherwise {
                    visit(otherwise);
                }
            }
        }
    }

    /// Calls `visit` with the index of each column use, repeated when it is used repeatedly.
    pub fn for_each_column(&self, visit: &mut dyn FnMut(u32)) {
        if let Self::Column(index) = self {
            visit(*index);
        }
        self.for_each_child(&mut |child| child.for_each_column(visit));
    }

    /// Calls `visit` with the index of each column use, to be renumbered in place.
    pub fn for_each_column_mut(&mut self, visit: &mut dyn FnMut(&mut u32)) {
        if let Self::Column(index) = self {
            visit(index);
        }
        self.for_each_child_mut(&mut |child| child.for_each_column_mut(visit));
    }

    /// The columns that the expression uses.
    pub fn columns(&self) -> BTreeSet<u32> {
        let mut columns = BTreeSet::new();
        self.for_each_column(&mut |index| {
            columns.insert(index);
        });
        columns
    }
}

impl Aggregate {
    /// The expressions of the aggregate: its argument and its filter.
    pub fn exprs(&self) -> impl Iterator<Item = &Expr> {
        self.argument.iter().chain(&self.filter)
    }

    /// Whether the result can be NULL: all but counts, when no row counts.
    pub fn nullable(&self) -> bool {
        self.function != AggregateFunction::Count
    }
}

impl Program {
    /// The schema of the batches that leave the scan: one field for each output expression, for
    /// each group key and then each aggregate, or `query`, `distance` and each expression. A field has its column's name if it is just
    /// that column, otherwise `c` and its position.
    pub fn output_schema(&self) -> SchemaRef {
        let field = |position: usize, expr: &Expr| {
            let name = match expr {
                Expr::Column(index) => self.columns.get(*index as usize).map(|c| c.name.clone()),
                _ => None,
            };
            let name = name.unwrap_or_else(|| format!("c{position}"));
            Field::new(
                name,
                expr.data_type(&self.columns),
                expr.nullable(&self.columns),
            )
        };
        let fields: Vec<Field> = match &self.output {
            Output::Rows { exprs, .. } => exprs
                .iter()
                .enumerate()
                .map(|(i, expr)| field(i, expr))
                .collect(),
            Output::Aggregate { keys, aggregates } => {
                let keys_and_names = keys.iter().enumerate().map(|(i, key)| field(i, key));
                let results = aggregates.iter().enumerate().map(|(i, aggregate)| {
                    let name = format!("c{}", keys.len() + i);
                    Field::new(name, aggregate.data_type.clone(), aggregate.nullable())
                });
                keys_and_names.chain(results).collect()
            }
            Output::Nearest { metric, exprs, .. } => {
                let found = [
                    Field::new("query", DataType::UInt32, false),
                    Field::new("distance", metric.data_type(), false),
                ];
                let exprs = exprs.iter().enumerate();
                let exprs = exprs.map(|(i, expr)| field(i + found.len(), expr));
                found.iter().cloned().chain(exprs).collect()
            }
        };
        Arc::new(Schema::new(fields))
    }

    /// The columns that the filter uses: what must be read to know which rows survive.
    pub fn filter_columns(&self) -> BTreeSet<u32> {
        self.filter.iter().flat_map(Expr::columns).collect()
    }

    /// The columns that the output uses: what is read for surviving rows.
    pub fn output_columns(&self) -> BTreeSet<u32> {
        match &self.output {
            Output::Rows { exprs, .. } => exprs.iter().flat_map(Expr::columns).collect(),
            Output::Aggregate { keys, aggregates } => keys
                .iter()
                .chain(aggregates.iter().flat_map(Aggregate::exprs))
                .flat_map(Expr::columns)
                .collect(),
            Output::Nearest { expr, exprs, .. } => std::iter::once(expr)
                .chain(exprs)
                .flat_map(Expr::columns)
                .collect(),
        }
    }
}
