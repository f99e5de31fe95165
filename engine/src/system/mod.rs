//! The schema `system`: what the process tells of itself, and `KILL QUERY`.

mod definitions;

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use arrow::array::{
    ArrayRef, BooleanBuilder, Float64Array, ListBuilder, RecordBatch, StringArray, StringBuilder,
    TimestampMicrosecondArray, UInt64Array,
};
use datafusion::catalog::{SchemaProvider, TableProvider};
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::datasource::MemTable;
use datafusion::error::Result;
use datafusion::logical_expr::LogicalPlan;
use datafusion::sql::sqlparser::ast::KillType;
use flashmesh_macros::async_impl;
use flashmesh_planner::walk::WalkPlan as _;
use flashmesh_storage::block_cache::CachedObject;
use flashmesh_storage::flash::{FlashHealth, PAGE_SIZE_BYTES};
use flashmesh_storage::functions::{Kernels, UserFunction};
use flashmesh_storage::store::{CardStatus, StoreUsage};
use flashmesh_storage::table::{Database, TableVersion};

use crate::accounts::{AccountKind, AccountList, GrantOf, grants_in};
use crate::error::Error;
use crate::grants::Principal;
use crate::names::SYSTEM_SCHEMA;
use crate::own_statement::OwnStatement;
use crate::queries::{Queries, QueryReport, QueryState};

/// Name of the table of queries.
const QUERIES: &str = "queries";
/// Name of the table of functions that users added.
const FUNCTIONS: &str = "functions";
/// Name of the table of flash cards.
const FLASH: &str = "flash";
/// Name of the table of columns.
const COLUMNS: &str = "columns";
/// Name of the table of CHECK constraints.
const CHECKS: &str = "checks";
/// Name of the table of indexes.
const INDEXES: &str = "indexes";
/// Name of the table of what the check of all pages has found.
const SCRUB: &str = "scrub";
/// Name of the table of tables.
const OF_TABLES: &str = "tables";
/// Name of the table of the versions of tables that can be read.
const VERSIONS: &str = "versions";
/// Name of the table of external files that are cached.
const CACHE: &str = "cache";
/// Name of the table of users and roles.
const USERS: &str = "users";
/// Name of the table of what is granted to them.
const GRANTS: &str = "grants";

const TABLES: [&str; 12] = [
    CACHE, CHECKS, COLUMNS, FLASH, FUNCTIONS, GRANTS, INDEXES, QUERIES, SCRUB, OF_TABLES, USERS,
    VERSIONS,
];

/// The tables of the schema, made when they are asked for.
#[derive(Debug)]
pub(crate) struct SystemSchema {
    database: Arc<Database>,
    kernels: Option<Arc<Kernels>>,
    queries: Arc<Queries>,
    principal: Arc<Principal>,
}

impl SystemSchema {
    /// What `principal` may see: the card, for an admin; columns, indexes, constraints and versions of tables on which they
    /// have a right; functions that they may use; their own queries, or all for an admin.
    pub fn new(
        database: Arc<Database>,
        kernels: Option<Arc<Kernels>>,
        queries: Arc<Queries>,
        principal: Arc<Principal>,
    ) -> Self {
        Self {
            database,
            kernels,
            queries,
            principal,
        }
    }

    fn queries(&self) -> Result<RecordBatch> {
        let mut queries: Vec<_> = self.queries.list().collect();
        if !self.principal.admin {
            queries.retain(|query| query.user == *self.principal.name);
        }
        batch_of(&queries)
    }

    fn functions(&self) -> Result<RecordBatch> {
        let functions = self.kernels.as_ref().map(|kernels| kernels.functions());
        let functions: Vec<_> = functions
            .iter()
            .flat_map(|functions| functions.iter())
            .filter(|function| self.principal.may_use(&function.entry.name))
            .collect();
        let text = |value: &dyn Fn(&UserFunction) -> String| -> ArrayRef {
            let values = functions.iter().map(|function| value(function));
            Arc::new(StringArray::from_iter_values(values))
        };
        let versions = functions.iter().map(|f| u64::from(f.entry.version));
        let created = functions.iter().map(|f| f.entry.created_at_us as i64);
        let created = TimestampMicrosecondArray::from_iter_values(created).with_timezone("UTC");
        let signature = |function: &UserFunction| {
            let signature = function.manifest().signature.as_ref();
            signature.map_or_else(String::new, ToString::to_string)
        };
        let digest = |function: &UserFunction| {
            let bytes = function.entry.digest.iter();
            bytes.map(|byte| format!("{byte:02x}")).collect()
        };
        Ok(RecordBatch::try_from_iter_with_nullable([
            ("name", text(&|f| f.entry.name.clone()), false),
            ("kind", text(&|f| f.manifest().kind.to_string()), false),
            ("signature", text(&signature), false),
            (
                "description",
                text(&|f| f.manifest().description.clone()),
                false,
            ),
            (
                "version",
                Arc::new(UInt64Array::from_iter_values(versions)) as ArrayRef,
                false,
            ),
            (
                "kernel_version",
                text(&|f| f.manifest().version.to_string()),
                false,
            ),
            ("owner", text(&|f| f.entry.owner.clone()), false),
            ("created_at", Arc::new(created) as ArrayRef, false),
            ("sha256", text(&digest), false),
        ])?)
    }

    /// The users and roles of the database, for an admin; others see themselves.
    fn users(&self) -> Result<RecordBatch> {
        let list = self.accounts()?;
        let is_seen = |name: &str| self.principal.admin || self.principal.is_of_database(name);
        let (mut names, mut kinds) = (StringBuilder::new(), StringBuilder::new());
        let (mut admin, mut password) = (BooleanBuilder::new(), BooleanBuilder::new());
        let mut certificates = StringBuilder::new();
        let mut roles = ListBuilder::new(StringBuilder::new());
        for (name, user) in list.users.iter().filter(|(name, _)| is_seen(name)) {
            names.append_value(name);
            kinds.append_value(AccountKind::User.to_string());
            admin.append_value(user.admin);
            password.append_value(user.password.is_some());
            certificates.append_option(user.certificate.as_deref());
            roles.append_value(user.roles.iter().map(Some));
        }
        for name in list.roles.keys().filter(|_| self.principal.admin) {
            names.append_value(name);
            kinds.append_value(AccountKind::Role.to_string());
            admin.append_value(false);
            password.append_value(false);
            certificates.append_null();
            roles.append_null();
        }
        Ok(RecordBatch::try_from_iter_with_nullable([
            ("name", Arc::new(names.finish()) as ArrayRef, false),
            ("kind", Arc::new(kinds.finish()) as ArrayRef, false),
            ("admin", Arc::new(admin.finish()) as ArrayRef, false),
            (
                "has_password",
                Arc::new(password.finish()) as ArrayRef,
                false,
            ),
            (
                "certificate",
                Arc::new(certificates.finish()) as ArrayRef,
                true,
            ),
            ("roles", Arc::new(roles.finish()) as ArrayRef, true),
        ])?)
    }

    /// What is granted to each user and role of the database, for an admin; others see what they have,
    /// wherever they stand.
    fn grants(&self) -> Result<RecordBatch> {
        let mut all: Vec<(String, GrantOf)> = Vec::new();
        if self.principal.admin {
            let list = self.accounts()?;
            for name in list.users.keys().chain(list.roles.keys()) {
                let grants = list.grants_of(name).into_iter();
                all.extend(grants.map(|grant| (name.clone(), grant)));
            }
        } else {
            let name = self.principal.name.to_string();
            let grants = grants_in(None, self.principal.granted());
            all.extend(grants.map(|grant| (name.clone(), grant)));
        }
        let text = |value: &dyn Fn(&GrantOf) -> String| -> ArrayRef {
            let values = all.iter().map(|(_, grant)| value(grant));
            Arc::new(StringArray::from_iter_values(values))
        };
        let names = all.iter().map(|(name, _)| name);
        let roles = all.iter().map(|(_, grant)| grant.role.as_deref());
        let column = |place: usize| text(&move |grant| grant.granted.words()[place].clone());
        Ok(RecordBatch::try_from_iter_with_nullable([
            (
                "grantee",
                Arc::new(StringArray::from_iter_values(names)) as ArrayRef,
                false,
            ),
            ("right", column(0), false),
            ("kind", column(1), false),
            ("name", column(2), false),
            (
                "through_role",
                Arc::new(StringArray::from_iter(roles)) as ArrayRef,
                true,
            ),
        ])?)
    }

    fn accounts(&self) -> Result<AccountList> {
        let accounts = self.database.accounts().map_err(Error::from)?;
        Ok(AccountList::of(&accounts)?)
    }

    /// One row; what is wrong names tables, and is an admin's to see.
    fn scrub(&self) -> Result<RecordBatch> {
        let scrubbed = self.database.scrubbed();
        let number = |value: u64| Arc::new(UInt64Array::from(vec![value])) as ArrayRef;
        let mut problems = ListBuilder::new(StringBuilder::new());
        match self.principal.admin {
            true => problems.append_value(scrubbed.problems.iter().map(Some)),
            false => problems.append_null(),
        }
        Ok(RecordBatch::try_from_iter_with_nullable([
            ("pages_checked", number(scrubbed.pages_checked), false),
            ("pages", number(scrubbed.pages_total), false),
            ("passes", number(scrubbed.passes), false),
            ("problems", Arc::new(problems.finish()) as ArrayRef, true),
        ])?)
    }

    /// One row for each card, for an admin. What only a raw card counts is NULL for others.
    fn flash(&self) -> Result<RecordBatch> {
        let cards = match self.principal.admin {
            true => self.database.store().card_statuses(),
            false => Vec::new(),
        };
        let page = PAGE_SIZE_BYTES as u64;
        let count = |of: &dyn Fn(&CardStatus) -> u64| {
            Arc::new(UInt64Array::from_iter_values(cards.iter().map(of))) as ArrayRef
        };
        let used = |of: fn(&StoreUsage) -> u64| count(&|card| of(&card.usage));
        let counted = |of: fn(&FlashHealth) -> u64| {
            let of = |card: &CardStatus| card.health.as_ref().map(of);
            Arc::new(UInt64Array::from_iter(cards.iter().map(of))) as ArrayRef
        };
        let figure = |of: &dyn Fn(&CardStatus) -> Option<f64>| {
            Arc::new(Float64Array::from_iter(cards.iter().map(of))) as ArrayRef
        };
        let of_health =
            |of: fn(&FlashHealth) -> Option<f64>| figure(&|card| card.health.as_ref().and_then(of));
        let block = |usage: &StoreUsage| u64::from(usage.pages_per_erase_block) * page;
        let spread = |health: &FlashHealth| {
            let mean = health.erase_count_mean;
            (mean > 0.0).then(|| f64::from(health.erase_count_max) / mean)
        };
        Ok(RecordBatch::try_from_iter_with_nullable([
            ("node", count(&|card| card.node.0.into()), false),
            ("card", count(&|card| card.card.0.into()), false),
            (
                "capacity_bytes",
                count(&|card| card.usage.capacity_pages.saturating_mul(page)),
                false,
            ),
            (
                "live_bytes",
                count(&|card| card.usage.live_pages * page),
                false,
            ),
            (
                "dead_bytes",
                count(&|card| card.usage.dead_pages * page),
                false,
            ),
            (
                "free_bytes",
                count(&|card| card.usage.free_blocks.saturating_mul(block(&card.usage))),
                false,
            ),
            (
                "memory_bytes",
                count(&|card| card.usage.memory_pages * page),
                false,
            ),
            (
                "erase_block_bytes",
                count(&|card| block(&card.usage)),
                false,
            ),
            ("written_pages", used(|usage| usage.written_pages), false),
            (
                "collected_pages",
                used(|usage| usage.collected_pages),
                false,
            ),
            (
                "write_amplification",
                figure(&|card| card.write_amplification),
                true,
            ),
            (
                "erase_count_max",
                counted(|h| h.erase_count_max.into()),
                true,
            ),
            (
                "erase_count_mean",
                of_health(|h| Some(h.erase_count_mean)),
                true,
            ),
            ("wear_spread", of_health(spread), true),
            ("bad_blocks", counted(|h| h.bad_blocks), true),
            ("spare_blocks", counted(|h| h.spare_blocks), true),
            ("corrected_bits", counted(|h| h.corrected_bits), true),
            (
                "uncorrectable_pages",
                counted(|h| h.uncorrectable_pages),
                true,
            ),
            (
                "modelled_busy_ms",
                of_health(|h| Some(h.modelled_busy_ns as f64 / 1e6)),
                true,
            ),
            (
                "modelled_elapsed_ms",
                of_health(|h| Some(h.modelled_elapsed_ns as f64 / 1e6)),
                true,
            ),
        ])?)
    }

    /// One row for each object, for an admin: files are not a user's to know of.
    fn cache(&self) -> Result<RecordBatch> {
        let cache = self.database.block_cache().filter(|_| self.principal.admin);
        let objects = cache.map(|cache| cache.contents()).unwrap_or_default();
        let text = |value: fn(&CachedObject) -> &str| -> ArrayRef {
            Arc::new(StringArray::from_iter_values(objects.iter().map(value)))
        };
        let number = |value: fn(&CachedObject) -> u64| -> ArrayRef {
            Arc::new(UInt64Array::from_iter_values(objects.iter().map(value)))
        };
        let tags = objects.iter().map(|object| object.version.e_tag.as_deref());
        let used = objects.iter().map(|object| object.used_at_us as i64);
        let used = TimestampMicrosecondArray::from_iter_values(used).with_timezone("UTC");
        Ok(RecordBatch::try_from_iter_with_nullable([
            ("store", text(|o| &o.store), false),
            ("path", text(|o| &o.path), false),
            (
                "etag",
                Arc::new(StringArray::from_iter(tags)) as ArrayRef,
                true,
            ),
            ("size_bytes", number(|o| o.version.size), false),
            ("cached_bytes", number(|o| o.cached_bytes), false),
            ("hits", number(|o| o.hits), false),
            ("misses", number(|o| o.misses), false),
            ("last_used", Arc::new(used) as ArrayRef, false),
        ])?)
    }

    /// The committed versions of tables, the present one of each the last.
    fn versions(&self) -> Result<RecordBatch> {
        let (mut schemas, mut tables) = (StringBuilder::new(), StringBuilder::new());
        let mut all = Vec::new();
        for schema in self.database.schemas() {
            for table in self.database.tables(&schema) {
                if self.principal.rights(&schema, &table).is_empty() {
                    continue;
                }
                // One that was dropped meanwhile has none.
                for version in self.database.versions(&schema, &table).unwrap_or_default() {
                    schemas.append_value(&schema);
                    tables.append_value(&table);
                    all.push(version);
                }
            }
        }
        let number = |of: fn(&TableVersion) -> u64| {
            Arc::new(UInt64Array::from_iter_values(all.iter().map(of))) as ArrayRef
        };
        let times = all
            .iter()
            .map(|v| v.committed_at_us.map(|time| time as i64));
        let times = TimestampMicrosecondArray::from_iter(times).with_timezone("UTC");
        Ok(RecordBatch::try_from_iter_with_nullable([
            ("schema", Arc::new(schemas.finish()) as ArrayRef, false),
            ("table", Arc::new(tables.finish()) as ArrayRef, false),
            ("version", number(|v| v.version), false),
            ("committed_at", Arc::new(times) as ArrayRef, true),
            ("rows", number(|v| v.rows), false),
            ("past_bytes", number(|v| v.past_bytes), false),
        ])?)
    }
}

#[async_impl]
impl SchemaProvider for SystemSchema {
    fn table_names(&self) -> Vec<String> {
        TABLES.map(String::from).to_vec()
    }

    async fn table(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
        let batch = match name {
            QUERIES => self.queries()?,
            FUNCTIONS => self.functions()?,
            CHECKS => self.checks()?,
            COLUMNS => self.columns()?,
            INDEXES => self.indexes()?,
            SCRUB => self.scrub()?,
            OF_TABLES => self.tables()?,
            VERSIONS => self.versions()?,
            FLASH => self.flash()?,
            CACHE => self.cache()?,
            USERS => self.users()?,
            GRANTS => self.grants()?,
            _ => return Ok(None),
        };
        let table = MemTable::try_new(batch.schema(), vec![vec![batch]])?;
        Ok(Some(Arc::new(table)))
    }

    fn table_exist(&self, name: &str) -> bool {
        TABLES.contains(&name)
    }
}

fn batch_of(queries: &[QueryReport]) -> Result<RecordBatch> {
    let numbers = |value: fn(&QueryReport) -> u64| -> ArrayRef {
        Arc::new(UInt64Array::from_iter_values(queries.iter().map(value)))
    };
    let texts = |value: fn(&QueryReport) -> &str| -> ArrayRef {
        Arc::new(StringArray::from_iter_values(queries.iter().map(value)))
    };
    let asked = queries.iter().map(|query| {
        let since = query.asked_at.duration_since(UNIX_EPOCH);
        since.map_or(0, |time| time.as_micros() as i64)
    });
    let asked = TimestampMicrosecondArray::from_iter_values(asked).with_timezone("UTC");
    let took = queries.iter().map(|query| query.took.as_secs_f64() * 1e3);
    let errors = queries.iter().map(|query| match &query.state {
        QueryState::Failed(error) => Some(error.as_str()),
        _ => None,
    });
    let plans = queries.iter().map(|query| query.plan.text());
    let tags = queries.iter().map(|query| query.tag.as_deref());
    Ok(RecordBatch::try_from_iter_with_nullable([
        ("id", numbers(|q| q.id), false),
        ("user", texts(|q| &q.user), false),
        ("query", texts(|q| &q.sql), false),
        ("state", texts(|q| q.state.name()), false),
        (
            "error",
            Arc::new(StringArray::from_iter(errors)) as ArrayRef,
            true,
        ),
        ("asked_at", Arc::new(asked) as ArrayRef, false),
        (
            "took_ms",
            Arc::new(Float64Array::from_iter_values(took)) as ArrayRef,
            false,
        ),
        ("rows", numbers(|q| q.rows), false),
        (
            "bytes_from_flash",
            numbers(|q| q.plan.scans.bytes_from_flash),
            false,
        ),
        ("bytes_to_host", numbers(|q| q.plan.bytes_to_host), false),
        (
            "segments_done",
            numbers(|q| q.plan.scans.segments_done),
            false,
        ),
        ("segments", numbers(|q| q.plan.scans.segments), false),
        (
            "plan",
            Arc::new(StringArray::from_iter_values(plans)) as ArrayRef,
            false,
        ),
        (
            "tag",
            Arc::new(StringArray::from_iter(tags)) as ArrayRef,
            true,
        ),
    ])?)
}

/// Whether a plan is a look at one table of the schema and nothing else: what shall work on a
/// server that is busy, and leave nothing behind there.
pub(crate) fn is_look(plan: &LogicalPlan) -> bool {
    let is_simple = match plan {
        LogicalPlan::TableScan(scan) => scan.table_name.schema() == Some(SYSTEM_SCHEMA),
        LogicalPlan::Projection(_)
        | LogicalPlan::Filter(_)
        | LogicalPlan::Sort(_)
        | LogicalPlan::Limit(_)
        | LogicalPlan::SubqueryAlias(_) => plan.inputs().into_iter().all(is_look),
        _ => false,
    };
    is_simple && !has_subqueries(plan)
}

fn has_subqueries(plan: &LogicalPlan) -> bool {
    let mut found = false;
    let _ = plan.walk_subqueries(|_| {
        found = true;
        Ok(TreeNodeRecursion::Stop)
    });
    found
}

/// What a parsed KILL says.
pub(crate) fn parsed_kill(kind: Option<&KillType>, id: u64) -> crate::Result<OwnStatement> {
    match kind {
        None | Some(KillType::Query) => Ok(OwnStatement::Kill(id)),
        Some(other) => Err(Error::usage(format!(
            "KILL {other} is not supported; KILL QUERY {id} ends a query"
        ))),
    }
}
