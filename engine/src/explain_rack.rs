//! `EXPLAIN RACK`: what the hardware of a rack would make of a query, modelled. The query runs once,
//! on the data at hand; what it had the store do is counted, scaled, and spread over the nodes of
//! the rack file, and the model runs on that (docs/model.md).

use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, StringArray};
use datafusion::dataframe::DataFrame;
use datafusion::execution::SessionState;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::execute_stream;
use datafusion::sql::parser::Statement as ParsedStatement;
use datafusion::sql::sqlparser::ast;
use flashmesh_cluster::model::{Execution, Report, Workload};
use flashmesh_cluster::{Answers, ModelledRack, Rack, RackError, ScanCounts};
use flashmesh_planner::StoreWork;
use flashmesh_planner::interrupt::StopOnDrop;
use futures::StreamExt;

use crate::Session;
use crate::blocking::blocking;
use crate::error::{Error, Result};
use crate::own_statement::{ExplainRackStatement, OwnStatement};
use crate::procedures::ExplainRackCall;
use crate::same_names;
use crate::views;

impl Session {
    /// The plan of `EXPLAIN RACK`, with all in the store that can be there.
    ///
    /// # Errors
    /// [`Error::Denied`] unless the user is an admin, [`Error::Usage`] for a query that changes
    /// something, those of planning it.
    pub(crate) async fn planned_explain(
        &self,
        state: &SessionState,
        call: ExplainRackCall,
    ) -> Result<ExplainRackStatement> {
        self.principal().check_admin("read files of the server")?;
        let query = ParsedStatement::Statement(Box::new(ast::Statement::Query(call.query)));
        let state = pushing_all(state.clone())?;
        let query = views::planning(same_names::plan(&state, query)).await?;
        if matches!(
            query,
            LogicalPlan::Dml(_) | LogicalPlan::Ddl(_) | LogicalPlan::Copy(_)
        ) {
            return Err(Error::usage(
                "EXPLAIN RACK runs what it explains, so it takes no statement that changes something",
            ));
        }
        Ok(ExplainRackStatement {
            rack: call.rack,
            scale: call.scale,
            query,
        })
    }

    /// Runs `EXPLAIN RACK`.
    ///
    /// # Errors
    /// [`Error::Usage`] for a rack file that can't be read or is none; those of the query.
    pub(crate) async fn explain_rack(&self, statement: ExplainRackStatement) -> Result<DataFrame> {
        let scale = statement.scale;
        let path = statement.rack.clone();
        let rack = blocking(move || load(&path)).await?;
        let work = self.work_of(&statement.query).await?;
        let rows = blocking(move || Ok::<_, Error>(rows(&rack, &work, scale))).await?;
        let column = |place: usize| -> ArrayRef {
            let cells = rows.iter().map(|row| row[place].as_str());
            Arc::new(StringArray::from_iter_values(cells))
        };
        let columns = (0..rows[0].len()).map(column).collect();
        let plan = OwnStatement::ExplainRack(statement).into_plan();
        let schema = Arc::clone(plan.schema().inner());
        Ok(self
            .context()
            .read_batch(RecordBatch::try_new(schema, columns)?)?)
    }

    /// Runs a query for what it has the store do.
    async fn work_of(&self, query: &LogicalPlan) -> Result<Vec<StoreWork>> {
        let state = pushing_all(self.context().state())?;
        let plan = state.create_physical_plan(query).await?;
        let _stop = StopOnDrop::new(&plan);
        let mut rows = execute_stream(Arc::clone(&plan), state.task_ctx())?;
        while let Some(batch) = rows.next().await {
            batch?;
        }
        Ok(StoreWork::of(plan.as_ref()))
    }
}

/// A session's state in which everything goes to the store that it can do, by scans of this node, which tell
/// what they did.
fn pushing_all(mut state: SessionState) -> Result<SessionState> {
    let options = state.config_mut().options_mut();
    options.set("flashmesh.pushdown", "always")?;
    options.set("flashmesh.distributed", "never")?;
    Ok(state)
}

fn load(path: &str) -> Result<ModelledRack> {
    let rack = Rack::load(Path::new(path)).and_then(|rack| ModelledRack::new(&rack));
    rack.map_err(|error| {
        Error::usage(match error {
            RackError::Io { .. } => format!("{error}; `flashmesh rack init` writes one"),
            error => format!("{path:?}: {error}"),
        })
    })
}

fn counts_of(work: &StoreWork) -> ScanCounts {
    ScanCounts {
        segments: work.segments,
        pages: work.pages,
        bytes: work.bytes_to_host,
        answers: work.streams.map_or(Answers::OfSegments, Answers::OfStreams),
        requests: work.commands,
    }
}

/// The cells of a row: which kind of figure, what, in the store, in the hosts, unit.
type Row = [String; 5];

/// What is counted, what the model is given, what it gives.
fn rows(rack: &ModelledRack, work: &[StoreWork], scale: u64) -> Vec<Row> {
    let scans: Vec<_> = work.iter().map(counts_of).collect();
    let workload = rack.workload(&scans, scale);
    let report = rack.run(&workload);
    let mut rows = counted(work, rack.page_bytes());
    rows.extend(scaled(&workload, rack.page_bytes()));
    rows.extend(modelled(&report, rack.nodes()));
    let fewer = (0..usize::BITS).map(|power| 1 << power);
    for nodes in fewer.take_while(|nodes| *nodes < rack.nodes()) {
        let rack = rack.nearest(nodes);
        let report = rack.run(&rack.workload(&scans, scale));
        rows.push(time(&report, nodes));
    }
    rows
}

fn row(figure: &str, quantity: &str, in_store: String, host: String, unit: &str) -> Row {
    [figure.into(), quantity.into(), in_store, host, unit.into()]
}

fn counted(work: &[StoreWork], page_bytes: u64) -> Vec<Row> {
    let sum = |of: fn(&StoreWork) -> u64| work.iter().map(|work| u128::from(of(work))).sum();
    let [segments, rows, pages, bytes]: [u128; 4] = [
        sum(|work| work.segments),
        sum(|work| work.rows),
        sum(|work| work.pages),
        sum(|work| work.bytes_to_host),
    ];
    let both = |quantity, count: u128| {
        let count = count.to_string();
        row("counted", quantity, count.clone(), count, "")
    };
    let read = pages * u128::from(page_bytes);
    vec![
        both("segments", segments),
        both("rows", rows),
        both("pages read", pages),
        row(
            "counted",
            "out of the store",
            bytes.to_string(),
            read.to_string(),
            "B",
        ),
    ]
}

/// What goes into the model, of all nodes.
fn scaled(workload: &Workload, page_bytes: u64) -> Vec<Row> {
    let sum = |of: fn(&flashmesh_cluster::model::Counts) -> u64| -> u128 {
        workload.nodes.iter().map(|node| u128::from(of(node))).sum()
    };
    let pages = sum(|node| node.pages);
    let most = workload.nodes.iter().map(|node| node.pages).max();
    let out = sum(|node| node.bytes_shipped);
    let over_links = sum(|node| match node.hops {
        0 => 0,
        _ => node.bytes_shipped,
    });
    let both = |quantity, count: String, unit| row("scaled", quantity, count.clone(), count, unit);
    let read = pages * u128::from(page_bytes);
    vec![
        both("pages read", pages.to_string(), ""),
        both(
            "pages read, busiest node",
            most.unwrap_or(0).to_string(),
            "",
        ),
        row(
            "scaled",
            "out of the store",
            out.to_string(),
            read.to_string(),
            "B",
        ),
        both("over links", over_links.to_string(), "B"),
        both("requests", sum(|node| node.requests).to_string(), ""),
    ]
}

fn modelled(report: &Report, nodes: usize) -> Vec<Row> {
    let executions = [&report.in_store, &report.host];
    let both = |quantity: &str, of: &dyn Fn(&Execution) -> String, unit| {
        let [in_store, host] = executions.map(of);
        row("modelled", quantity, in_store, host, unit)
    };
    let bottleneck = |of: &Execution| match &of.bottleneck {
        Some(part) => part.part.to_string(),
        None => "latency".to_string(),
    };
    let mut rows = vec![time(report, nodes), both("bottleneck", &bottleneck, "")];
    let mut parts: Vec<&str> = Vec::new();
    for part in executions.into_iter().flat_map(|of| &of.parts) {
        if !parts.contains(&part.part) {
            parts.push(part.part);
        }
    }
    for part in parts {
        let used = |of: &Execution| {
            let used = of.parts.iter().find(|other| other.part == part);
            format!("{:.1}", used.map_or(0.0, |part| part.highest * 100.0))
        };
        rows.push(both(&format!("use of {part}"), &used, "%"));
    }
    let joules = |joules: fn(&Execution) -> f64| move |of: &Execution| format!("{:.3}", joules(of));
    rows.push(both("energy", &joules(|of| of.joules), "J"));
    rows.push(both(
        "energy of the storage",
        &joules(|of| of.storage_joules),
        "J",
    ));
    rows
}

fn time(report: &Report, nodes: usize) -> Row {
    let of_nodes = match nodes {
        1 => "time, 1 node".to_string(),
        nodes => format!("time, {nodes} nodes"),
    };
    let [in_store, host] =
        [&report.in_store, &report.host].map(|of| format!("{:.3}", of.seconds * 1e3));
    row("modelled", &of_nodes, in_store, host, "ms")
}
