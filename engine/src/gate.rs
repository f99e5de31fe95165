//! The gate: what a user's plans may hold.
//!
//! Every plan passes [`admit`], whatever it came as (SQL, a prepared statement, Substrait, a
//! DataFrame) and whatever stands around it (EXPLAIN, PREPARE, a subquery, a view): when it is
//! made, so that a plan that is only described tells nothing either; when it is executed; and
//! when it becomes operators ([`GatedPlanner`]), which no path to rows or files avoids.
//!
//! What statements that make and drop things may name is checked where their names are resolved.

use std::sync::Arc;

use datafusion::catalog::Session as DataFusionSession;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::execution::context::QueryPlanner;
use datafusion::logical_expr::{DdlStatement, LogicalPlan, WriteOp};
use datafusion::physical_plan::ExecutionPlan;
use flashmesh_macros::async_impl;
use flashmesh_planner::FlashTable;
use flashmesh_planner::asof::is_as_of_join;
use flashmesh_planner::relations::is_store_function;
use flashmesh_planner::walk::WalkPlan as _;
use flashmesh_storage::capability::Right;

use crate::error::{Error, Result};
use crate::grants::Principal;
use crate::own_statement::OwnStatement;
use crate::returning::Returning;

/// Refuses a plan that holds, at any depth, what `principal` may not do. What is not listed is
/// denied.
///
/// # Errors
/// [`Error::Denied`] with what is missing.
pub(crate) fn admit(principal: &Principal, plan: &LogicalPlan) -> Result<()> {
    if principal.admin {
        return Ok(());
    }
    let mut refused = None;
    plan.walk_with_subqueries(|node| {
        let is_part = !std::ptr::eq(node, plan);
        match check(principal, node, is_part) {
            Ok(()) => Ok(TreeNodeRecursion::Continue),
            Err(error) => {
                refused = Some(error);
                Ok(TreeNodeRecursion::Stop)
            }
        }
    })?;
    refused.map_or(Ok(()), Err)
}

/// Checks one node, which is a whole statement or a part of one.
fn check(principal: &Principal, node: &LogicalPlan, is_part: bool) -> Result<()> {
    match node {
        LogicalPlan::Projection(_)
        | LogicalPlan::Filter(_)
        | LogicalPlan::Window(_)
        | LogicalPlan::Aggregate(_)
        | LogicalPlan::Sort(_)
        | LogicalPlan::Join(_)
        | LogicalPlan::Repartition(_)
        | LogicalPlan::Union(_)
        | LogicalPlan::EmptyRelation(_)
        | LogicalPlan::Subquery(_)
        | LogicalPlan::SubqueryAlias(_)
        | LogicalPlan::Limit(_)
        | LogicalPlan::Values(_)
        | LogicalPlan::Explain(_)
        | LogicalPlan::Analyze(_)
        | LogicalPlan::Distinct(_)
        | LogicalPlan::DescribeTable(_)
        | LogicalPlan::Unnest(_)
        | LogicalPlan::RecursiveQuery(_) => Ok(()),
        // What is not on flash is the session's own: what it may not see, its catalog has not.
        LogicalPlan::TableScan(scan) => match FlashTable::of(&scan.source) {
            Some(table) => check_table(principal, Right::Read, &table),
            None => Ok(()),
        },
        LogicalPlan::Dml(dml) => match FlashTable::of(&dml.target) {
            Some(table) => {
                // It is joined with its source.
                if matches!(dml.op, WriteOp::MergeInto(_)) {
                    check_table(principal, Right::Read, &table)?;
                }
                check_table(principal, Right::Write, &table)
            }
            None => principal.check_admin("write to tables outside the database"),
        },
        LogicalPlan::Copy(_) => principal.check_admin("write files of the server"),
        LogicalPlan::Extension(extension) => {
            let operator = extension.node.as_ref();
            let statement = OwnStatement::of(node);
            match statement {
                Some(OwnStatement::Accounts(statement))
                    if !statement.is_own_password_of(principal) =>
                {
                    return principal.check_admin("change users, roles or grants");
                }
                Some(OwnStatement::Backup(_)) => {
                    return principal.check_admin("back the database up");
                }
                Some(OwnStatement::Check) => return principal.check_admin("check the database"),
                Some(OwnStatement::ClearCache) => return principal.check_admin("clear the cache"),
                Some(OwnStatement::ExplainRack(_)) => {
                    return principal.check_admin("read files of the server");
                }
                _ => {}
            }
            // What it changes and what it reads are its inputs.
            let is_change = Returning::of(node).is_some();
            let is_known = is_store_function(operator) || is_as_of_join(operator);
            match is_known || is_change || (statement.is_some() && !is_part) {
                true => Ok(()),
                false => principal.check_admin(&format!("run {}", operator.name())),
            }
        }
        LogicalPlan::Ddl(_) | LogicalPlan::Statement(_) if is_part => Err(Error::Denied(format!(
            "user '{principal}' may not run this as a part of another statement; run it by itself",
        ))),
        LogicalPlan::Ddl(ddl) => match ddl {
            DdlStatement::CreateMemoryTable(_)
            | DdlStatement::CreateView(_)
            | DdlStatement::CreateCatalogSchema(_)
            | DdlStatement::CreateCatalog(_)
            | DdlStatement::CreateIndex(_)
            | DdlStatement::DropTable(_)
            | DdlStatement::DropView(_)
            | DdlStatement::DropCatalogSchema(_)
            | DdlStatement::CreateFunction(_)
            | DdlStatement::DropFunction(_) => Ok(()),
            DdlStatement::CreateExternalTable(_) => {
                principal.check_admin("read files of the server")
            }
        },
        // Options are checked by name where they are set.
        LogicalPlan::Statement(_) => Ok(()),
    }
}

fn check_table(principal: &Principal, right: Right, table: &FlashTable) -> Result<()> {
    let (schema, name) = table.named().name();
    principal.check(right, schema, name)
}

/// A session's planner: nothing becomes operators that the gate does not admit.
#[derive(Debug)]
pub(crate) struct GatedPlanner {
    pub planner: Arc<dyn QueryPlanner + Send + Sync>,
    pub principal: Arc<Principal>,
}

#[async_impl]
impl QueryPlanner for GatedPlanner {
    async fn create_physical_plan(
        &self,
        plan: &LogicalPlan,
        session: &dyn DataFusionSession,
    ) -> datafusion::error::Result<Arc<dyn ExecutionPlan>> {
        admit(&self.principal, plan)?;
        self.planner.create_physical_plan(plan, session).await
    }
}

#[cfg(test)]
mod tests {
    use std::fmt;

    use datafusion::common::{DFSchema, DFSchemaRef};
    use datafusion::logical_expr::{
        Expr, Extension, LogicalPlanBuilder, UserDefinedLogicalNodeCore, exists,
    };

    use super::*;

    /// An operator that nobody listed.
    #[derive(Debug, Clone, PartialEq, Eq, Hash)]
    struct Unlisted(DFSchemaRef);

    impl PartialOrd for Unlisted {
        fn partial_cmp(&self, _: &Self) -> Option<std::cmp::Ordering> {
            None
        }
    }

    impl UserDefinedLogicalNodeCore for Unlisted {
        fn name(&self) -> &str {
            "Unlisted"
        }

        fn inputs(&self) -> Vec<&LogicalPlan> {
            vec![]
        }

        fn schema(&self) -> &DFSchemaRef {
            &self.0
        }

        fn expressions(&self) -> Vec<Expr> {
            vec![]
        }

        fn fmt_for_explain(&self, f: &mut fmt::Formatter) -> fmt::Result {
            f.write_str("Unlisted")
        }

        fn with_exprs_and_inputs(
            &self,
            _: Vec<Expr>,
            _: Vec<LogicalPlan>,
        ) -> datafusion::error::Result<Self> {
            Ok(self.clone())
        }
    }

    #[test]
    fn what_is_not_listed_is_denied_at_any_depth() {
        let user = Principal::user("eve", vec![], Default::default());
        let unlisted = LogicalPlan::Extension(Extension {
            node: Arc::new(Unlisted(Arc::new(DFSchema::empty()))),
        });
        let one = LogicalPlanBuilder::empty(true);
        admit(&user, &one.clone().build().unwrap()).unwrap();
        let in_subquery = one.filter(exists(Arc::new(unlisted.clone()))).unwrap();
        let explained = LogicalPlanBuilder::from(unlisted.clone());
        for plan in [
            unlisted,
            in_subquery.build().unwrap(),
            explained.explain(false, true).unwrap().build().unwrap(),
        ] {
            let refused = admit(&user, &plan).unwrap_err();
            assert!(matches!(refused, Error::Denied(_)), "{refused}");
            admit(&Principal::owner(), &plan).unwrap();
        }
    }
}
