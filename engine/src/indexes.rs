//! `CREATE INDEX` and `DROP INDEX`. DataFusion's plan of the one drops `WITH (…)` and it has none
//! of the other, so both are taken from the parsed statement.

use std::collections::BTreeMap;

use datafusion::common::TableReference;
use datafusion::dataframe::DataFrame;
use datafusion::logical_expr::{CreateIndex as PlannedCreateIndex, Expr};
use datafusion::sql::planner::IdentNormalizer;
use datafusion::sql::sqlparser::ast;
use flashmesh_planner::Authority;
use flashmesh_storage::StorageError;
use flashmesh_storage::capability::Right;
use flashmesh_storage::index::{IndexDefinition, IndexKind};

use crate::Session;
use crate::blocking::blocking;
use crate::error::{Error, Result};
use crate::own_statement::{CreateIndex, IndexStatement};

impl Session {
    /// What a parsed `DROP INDEX` says.
    pub(crate) fn parsed_drop_index(
        &self,
        names: &[ast::ObjectName],
        if_exists: bool,
    ) -> Result<IndexStatement> {
        let indexes = names.iter().map(|name| self.reference(name));
        Ok(IndexStatement::Drop {
            indexes: indexes.collect::<Result<_>>()?,
            if_exists,
        })
    }

    /// What a parsed `CREATE INDEX` says.
    pub(crate) fn parsed_create_index(&self, create: &ast::CreateIndex) -> Result<IndexStatement> {
        let unsupported = |what: &str| {
            Err(Error::usage(format!(
                "CREATE INDEX does not know {what}; leave it out"
            )))
        };
        if create.predicate.is_some() {
            return unsupported("WHERE");
        }
        if !create.include.is_empty() {
            return unsupported("INCLUDE");
        }
        if create.nulls_distinct == Some(false) {
            return unsupported("NULLS NOT DISTINCT");
        }
        let mut using = create.using.as_ref();
        for option in &create.index_options {
            match option {
                ast::IndexOption::Using(kind) => using = Some(kind),
                other => return unsupported(&other.to_string()),
            }
        }
        let columns = create
            .columns
            .iter()
            .map(|column| match &column.column.expr {
                ast::Expr::Identifier(name) => Ok(self.normalise(name)),
                other => Err(Error::usage(format!(
                    "an index is made on columns, not on expressions such as {other}"
                ))),
            });
        let name = create.name.as_ref().map(|name| self.reference(name));
        Ok(IndexStatement::Create(CreateIndex {
            name: name.transpose()?.map(|name| name.table().to_string()),
            table: self.reference(&create.table_name)?,
            using: using.map(|kind| match kind {
                ast::IndexType::Custom(name) => name.value.to_lowercase(),
                kind => kind.to_string().to_lowercase(),
            }),
            columns: columns.collect::<Result<_>>()?,
            unique: create.unique,
            if_not_exists: create.if_not_exists,
            options: create.with.iter().map(option).collect::<Result<_>>()?,
        }))
    }

    /// A name as SQL means it: in lower case unless quoted.
    pub(crate) fn normalise(&self, name: &ast::Ident) -> String {
        let lower = self.options().sql_parser.enable_ident_normalization;
        IdentNormalizer::new(lower).normalize(name.clone())
    }

    fn reference(&self, name: &ast::ObjectName) -> Result<TableReference> {
        let parts: Option<Vec<String>> = name
            .0
            .iter()
            .map(|part| part.as_ident().map(|name| self.normalise(name)))
            .collect();
        match parts.as_deref() {
            Some([table]) => Ok(TableReference::bare(table.as_str())),
            Some([schema, table]) => Ok(TableReference::partial(schema.as_str(), table.as_str())),
            Some([catalog, schema, table]) => Ok(TableReference::full(
                catalog.as_str(),
                schema.as_str(),
                table.as_str(),
            )),
            _ => Err(Error::usage(format!("'{name}' is not a name"))),
        }
    }

    /// Runs a planned `CREATE INDEX` that came without its statement, and so without `WITH`.
    pub(crate) async fn create_planned_index(
        &self,
        create: PlannedCreateIndex,
    ) -> Result<DataFrame> {
        let columns = create.columns.iter().map(|column| match &column.expr {
            Expr::Column(column) => Ok(column.name.clone()),
            other => Err(Error::usage(format!(
                "an index is made on columns, not on expressions such as {other}"
            ))),
        });
        let create = CreateIndex {
            name: create.name,
            table: create.table,
            using: create.using,
            columns: columns.collect::<Result<_>>()?,
            unique: create.unique,
            if_not_exists: create.if_not_exists,
            options: BTreeMap::new(),
        };
        self.create_index(create).await
    }

    /// Runs a statement about indexes.
    pub(crate) async fn execute_index(&self, statement: IndexStatement) -> Result<DataFrame> {
        match statement {
            IndexStatement::Create(create) => self.create_index(create).await,
            IndexStatement::Drop { indexes, if_exists } => {
                for name in indexes {
                    let mut name = self.resolve_written(name);
                    let place = self.workspace().place_of_index(&name.schema, &name.table);
                    name.schema = place.into();
                    self.flash_schema(&name)?;
                    let (schema, index) = (name.schema.to_string(), name.table.to_string());
                    match self.workspace().index(&schema, &index) {
                        Ok((table, version, _)) if self.principal().sees(&schema, &table) => {
                            self.principal().check(Right::Create, &schema, &table)?;
                            let capability = self.catalog().authority().capability(&version);
                            let changes = self.changes();
                            blocking(move || changes.drop_index(&capability, &schema, &index))
                                .await?;
                        }
                        _ if if_exists => {}
                        _ => {
                            return Err(Error::Storage(StorageError::NotFound {
                                kind: "index",
                                name: index,
                            }));
                        }
                    }
                }
                self.nothing()
            }
        }
    }

    async fn create_index(&self, create: CreateIndex) -> Result<DataFrame> {
        let name = self.resolve(create.table);
        let schema = self.flash_schema(&name)?;
        if !schema.is_on_flash(&name.table) {
            return match schema.session_table(&name.table) {
                Some(_) => Err(Error::usage(format!(
                    "'{}' is a view or external table; indexes are made on tables of the database",
                    name.table
                ))),
                None => Err(Error::Storage(StorageError::NotFound {
                    kind: "table",
                    name: name.table.to_string(),
                })),
            };
        }
        self.principal()
            .check(Right::Create, &name.schema, &name.table)?;
        let kind = match &create.using {
            Some(kind) => IndexKind::parse(kind)?,
            // What other systems would make a B-tree.
            None => IndexKind::Hash,
        };
        let table = schema.snapshot(&name.table)?;
        let columns = create.columns.iter().map(|column| {
            let found = table.schema.index_of(column);
            found.map(|i| i as u32).map_err(|_| {
                let names: Vec<_> = table.schema.fields().iter().map(|f| f.name()).collect();
                let nearest = nearest_name(column, &names);
                Error::usage(format!(
                    "table '{}' has no column '{column}'{nearest}",
                    name.table
                ))
            })
        });
        let definition = IndexDefinition {
            columns: columns.collect::<Result<_>>()?,
            name: create
                .name
                .unwrap_or_else(|| format!("{}_{}_{kind}", name.table, create.columns.join("_"))),
            kind,
            unique: create.unique,
            primary: false,
            options: create.options,
        };
        if create.if_not_exists
            && let Ok((owner, ..)) = self.workspace().index(&name.schema, &definition.name)
            && self.principal().sees(&name.schema, &owner)
        {
            return self.nothing();
        }
        let capability = self.catalog().authority().capability(&table);
        let changes = self.changes();
        let (schema, table) = (name.schema.to_string(), name.table.to_string());
        blocking(move || changes.create_index(&capability, &schema, &table, definition)).await?;
        self.nothing()
    }
}

/// One `name = value` of `WITH (…)`.
fn option(expr: &ast::Expr) -> Result<(String, String)> {
    let malformed = || {
        Error::usage(format!(
            "an option of WITH is written name = value, not {expr}"
        ))
    };
    let ast::Expr::BinaryOp {
        left,
        op: ast::BinaryOperator::Eq,
        right,
    } = expr
    else {
        return Err(malformed());
    };
    let ast::Expr::Identifier(name) = left.as_ref() else {
        return Err(malformed());
    };
    let value = match right.as_ref() {
        ast::Expr::Identifier(word) => word.value.clone(),
        ast::Expr::Value(value) => match &value.value {
            ast::Value::SingleQuotedString(text) => text.clone(),
            other => other.to_string(),
        },
        other => other.to_string(),
    };
    Ok((name.value.to_lowercase(), value))
}

/// " (did you mean 'x'?)" where a name is near.
fn nearest_name(name: &str, names: &[&String]) -> String {
    let near = names
        .iter()
        .map(|candidate| {
            let distance =
                datafusion::common::utils::datafusion_strsim::levenshtein(name, candidate);
            (distance, candidate)
        })
        .min_by_key(|(distance, _)| *distance);
    match near {
        Some((distance, candidate)) if distance <= 2 => format!(" (did you mean '{candidate}'?)"),
        _ => String::new(),
    }
}
