//! Views of a dump.

use std::ops::ControlFlow;

use arrow::array::AsArray;
use arrow::compute::cast;
use arrow::datatypes::DataType;
use datafusion::sql::parser::Statement;
use datafusion::sql::planner::IdentNormalizer;
use futures::TryStreamExt;

use super::super::backend::Backend;
use super::super::catalog::Table;
use super::text;
use crate::Result;
use crate::parse::parse;
use crate::walk::visit_relations;

/// The dialect that sessions have unless told otherwise.
const DIALECT: &str = "duckdb";

pub(super) async fn definitions(backend: &dyn Backend, views: Vec<&Table>) -> Result<Vec<View>> {
    let mut found = Vec::with_capacity(views.len());
    for view in views {
        let question = format!(
            "SELECT definition FROM information_schema.views WHERE table_schema = {} AND table_name = {}",
            text(&view.schema),
            text(&view.name)
        );
        let rows: Vec<_> = backend
            .run(question.into())
            .await?
            .rows
            .try_collect()
            .await?;
        for batch in rows {
            let definitions = cast(batch.column(0), &DataType::Utf8)?;
            let definitions = definitions.as_string::<i32>().iter().flatten();
            found.extend(definitions.map(|definition| View::of(view, definition)));
        }
    }
    Ok(found)
}

/// Views behind those that they name.
pub(super) fn ordered(mut views: Vec<View>) -> Vec<View> {
    let mut ordered = Vec::with_capacity(views.len());
    while !views.is_empty() {
        let names_none = |view: &View| !views.iter().any(|other| view.names(other));
        // Without one that names none of the others they can't have been made.
        let next = views.iter().position(names_none).unwrap_or(0);
        ordered.push(views.remove(next));
    }
    ordered
}

/// A view, as it is made.
pub(super) struct View {
    schema: String,
    name: String,
    pub definition: String,
    /// What it reads, as it says so: with or without a schema.
    relations: Vec<Vec<String>>,
}

impl View {
    fn of(view: &Table, definition: &str) -> Self {
        let mut relations = Vec::new();
        for statement in parse(definition, DIALECT).unwrap_or_default() {
            if let Statement::Statement(statement) = statement {
                let _ = visit_relations(&statement, |name| {
                    let parts = name.0.iter().filter_map(|part| part.as_ident());
                    let normalizer = IdentNormalizer::default();
                    relations.push(parts.map(|p| normalizer.normalize(p.clone())).collect());
                    ControlFlow::<()>::Continue(())
                });
            }
        }
        Self {
            schema: view.schema.clone(),
            name: view.name.clone(),
            definition: definition.into(),
            relations,
        }
    }

    /// Whether it reads another one, or may.
    fn names(&self, other: &Self) -> bool {
        let is_other = |relation: &Vec<String>| match relation.as_slice() {
            [.., schema, name] => (schema, name) == (&other.schema, &other.name),
            [name] => *name == other.name,
            [] => false,
        };
        let is_itself = (&self.schema, &self.name) == (&other.schema, &other.name);
        !is_itself && self.relations.iter().any(is_other)
    }
}
