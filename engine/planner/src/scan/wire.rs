//! Scans, and what else only flashmesh's plans have, as bytes: for plans of which other nodes run a part.
//!
//! A scan goes as the storage's own command, which its node verifies when it runs, and with what
//! the operators above it have to say: the filters that change while the query runs stay those of the
//! join or the top-k that changes them, as both are decoded together.

use std::sync::Arc;

use arrow::compute::SortOptions;
use arrow::datatypes::{Schema, SchemaRef};
use datafusion::common::{Result, internal_datafusion_err, internal_err};
use datafusion::execution::TaskContext;
use datafusion::physical_expr::PhysicalSortExpr;
use datafusion::physical_plan::{ExecutionPlan, Partitioning};
use datafusion_proto::physical_plan::{
    PhysicalExtensionCodec, PhysicalPlanDecodeContext, PhysicalProtoConverterExtension,
};
use datafusion_proto::protobuf::{PhysicalExprNode, Schema as SchemaRecord};
use flashmesh_pushdown::Scalar;
use flashmesh_storage::node::StorageNode;
use flashmesh_storage::peer::PeerCommand;
use flashmesh_storage::segment::CarriedRun;
use flashmesh_storage::table::ColumnStatistics;
use prost::{Message, Oneof};

use super::FlashScanExec;
use super::spec::{DynamicFilter, PushedFilter, ScanSpec};
use crate::config::Pushdown;
use crate::error::from_storage;
use crate::exchange::LocalExchangeExec;
use crate::forgetting::ForgettingExec;
use crate::join_keys::{JoinKeysExec, KeyFilter};
use crate::leading_rows::LeadingRowsExec;
use crate::slicing::SlicingExec;
use crate::sorted_ranks::SortedRanksExec;
use crate::tree;

/// Streams that another node may ask for; more than it has threads is of no use.
const PARTITIONS_MAX: u32 = 1 << 12;

/// Scans, exchanges and what notes keys of joins, to and from bytes. What is decoded runs on this node's
/// storage.
#[derive(Debug)]
pub struct ScanCodec {
    node: Arc<StorageNode>,
}

#[derive(Clone, PartialEq, Message)]
struct OperatorRecord {
    #[prost(oneof = "Operator", tags = "1, 2, 3, 4, 5, 6, 7")]
    operator: Option<Operator>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Operator {
    #[prost(message, tag = "1")]
    Scan(ScanRecord),
    #[prost(message, tag = "2")]
    Exchange(ExchangeRecord),
    #[prost(message, tag = "3")]
    JoinKeys(JoinKeysRecord),
    /// A [`ForgettingExec`].
    #[prost(bool, tag = "4")]
    Forgetting(bool),
    /// The rows of a [`SlicingExec`].
    #[prost(uint64, tag = "5")]
    Slicing(u64),
    #[prost(message, tag = "6")]
    LeadingRows(LeadingRowsRecord),
    /// A [`SortedRanksExec`] of the window that is its input.
    #[prost(bool, tag = "7")]
    SortedRanks(bool),
}

#[derive(Clone, PartialEq, Message)]
struct ScanRecord {
    #[prost(bytes = "vec", tag = "1")]
    command: Vec<u8>,
    /// Names and types of what leaves.
    #[prost(message, required, tag = "2")]
    schema: SchemaRecord,
    #[prost(uint32, tag = "3")]
    partitions: u32,
    #[prost(uint32, repeated, tag = "4")]
    null_for_zero: Vec<u32>,
    #[prost(message, repeated, tag = "5")]
    dynamic_filters: Vec<FilterRecord>,
    /// Pages of its segments that are in memory where it was planned.
    #[prost(message, repeated, tag = "6")]
    pages: Vec<CarriedRun>,
    #[prost(message, repeated, tag = "7")]
    key_filters: Vec<KeyFilter>,
}

/// Of a [`JoinKeysExec`].
#[derive(Clone, PartialEq, Message)]
struct JoinKeysRecord {
    #[prost(uint32, tag = "1")]
    join: u32,
    #[prost(message, repeated, tag = "2")]
    keys: Vec<JoinKeyRecord>,
}

#[derive(Clone, PartialEq, Message)]
struct JoinKeyRecord {
    #[prost(message, required, tag = "1")]
    expr: PhysicalExprNode,
    #[prost(sint64, optional, tag = "2")]
    least: Option<i64>,
    #[prost(sint64, optional, tag = "3")]
    greatest: Option<i64>,
}

/// Of a [`LocalExchangeExec`].
#[derive(Clone, PartialEq, Message)]
struct ExchangeRecord {
    #[prost(message, repeated, tag = "1")]
    keys: Vec<PhysicalExprNode>,
    #[prost(uint32, tag = "2")]
    partitions: u32,
    #[prost(bool, tag = "3")]
    preserves_order: bool,
}

/// Of a [`LeadingRowsExec`].
#[derive(Clone, PartialEq, Message)]
struct LeadingRowsRecord {
    #[prost(message, repeated, tag = "1")]
    partition: Vec<PhysicalExprNode>,
    #[prost(message, repeated, tag = "2")]
    order: Vec<OrderRecord>,
    #[prost(uint32, tag = "3")]
    most: u32,
    #[prost(bool, tag = "4")]
    ties: bool,
}

#[derive(Clone, PartialEq, Message)]
struct OrderRecord {
    #[prost(message, required, tag = "1")]
    expr: PhysicalExprNode,
    #[prost(bool, tag = "2")]
    descending: bool,
    #[prost(bool, tag = "3")]
    nulls_first: bool,
}

#[derive(Clone, PartialEq, Message)]
struct FilterRecord {
    #[prost(message, required, tag = "1")]
    expr: PhysicalExprNode,
    #[prost(message, required, tag = "2")]
    schema: SchemaRecord,
    #[prost(message, repeated, tag = "3")]
    columns: Vec<ColumnRecord>,
}

/// A column of a filter, and what is known of it.
#[derive(Clone, PartialEq, Message)]
struct ColumnRecord {
    #[prost(uint32, optional, tag = "1")]
    ordinal: Option<u32>,
    /// Least and greatest value, where these are integers.
    #[prost(sint64, optional, tag = "2")]
    min: Option<i64>,
    #[prost(sint64, optional, tag = "3")]
    max: Option<i64>,
    #[prost(uint64, optional, tag = "4")]
    distinct: Option<u64>,
}

impl ScanCodec {
    /// What is decoded runs on `node`.
    pub fn new(node: Arc<StorageNode>) -> Self {
        Self { node }
    }

    fn record(
        &self,
        scan: &FlashScanExec,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<ScanRecord> {
        let spec = scan.spec();
        let command = PeerCommand {
            program: Arc::clone(scan.program()),
            table: Arc::clone(&spec.table),
            runtime_filters: Vec::new(),
            // The session of the node that runs it says how many.
            batch_rows: 1,
            plain_text: spec.plain_text,
            forbids_fallback: spec.forbids_fallback,
            accelerator: spec.accelerator.clone(),
            capability: Arc::clone(&spec.capability),
            // Such plans are the head's.
            kernels: Default::default(),
        };
        let command = command.encode(&spec.table.segments);
        let filters = spec.dynamic_filters.iter();
        let filters = filters.map(|filter| self.filter_record(filter, spec, converter));
        let null_for_zero = spec.null_for_zero.iter();
        let pages = match spec.brings_pages {
            true => self
                .node
                .carried(&spec.table.segments)
                .map_err(from_storage)?,
            false => Vec::new(),
        };
        Ok(ScanRecord {
            pages,
            command: command.ok_or_else(|| internal_datafusion_err!("a scan of no table"))?,
            schema: scan.schema().as_ref().try_into()?,
            partitions: u32::try_from(scan.partitions()).unwrap_or(PARTITIONS_MAX),
            null_for_zero: null_for_zero.map(|index| *index as u32).collect(),
            dynamic_filters: filters.collect::<Result<_>>()?,
            key_filters: spec.key_filters.clone(),
        })
    }

    fn filter_record(
        &self,
        filter: &DynamicFilter,
        spec: &ScanSpec,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<FilterRecord> {
        let column = |ordinal: &Option<u32>| {
            let of_table = ordinal.and_then(|o| spec.table.statistics.get(o as usize));
            let bound = |value: &Option<Scalar>| match value {
                Some(Scalar::Int(value)) => i64::try_from(*value).ok(),
                _ => None,
            };
            ColumnRecord {
                ordinal: *ordinal,
                min: of_table.and_then(|s| bound(&s.min)),
                max: of_table.and_then(|s| bound(&s.max)),
                distinct: of_table.and_then(|s| s.distinct),
            }
        };
        Ok(FilterRecord {
            expr: converter.physical_expr_to_proto(&filter.expr, self)?,
            schema: filter.schema.as_ref().try_into()?,
            columns: filter.ordinals.iter().map(column).collect(),
        })
    }

    fn scan(
        &self,
        record: &ScanRecord,
        context: &TaskContext,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<FlashScanExec> {
        let command = PeerCommand::decode(&record.command).map_err(from_storage)?;
        let program = command.program;
        let ordinals: Vec<u32> = program.columns.iter().map(|c| c.ordinal).collect();
        // The Program is verified: it has these columns.
        let ordinal = |number: u32| ordinals[number as usize];
        let schema = schema_of(&record.schema)?;
        let types = |schema: &Schema| -> Vec<_> {
            let fields = schema.fields().iter();
            fields.map(|field| field.data_type().clone()).collect()
        };
        if types(&schema) != types(program.output_schema()) {
            return internal_err!("a scan whose columns are not those of its Program");
        }
        let mut table = Arc::try_unwrap(command.table)
            .map_err(|_| internal_datafusion_err!("a table that others hold"))?;
        if !record.pages.is_empty() {
            let pages = record.pages.clone();
            let segments = self.node.put_down(&table.segments, pages);
            table.segments = segments.map_err(from_storage)?;
        }
        table.statistics = vec![ColumnStatistics::default(); table.scan_schema.fields().len()];
        let mut filters = Vec::with_capacity(record.dynamic_filters.len());
        for filter in &record.dynamic_filters {
            let (filter, known) = self.filter(filter, context, converter)?;
            for (ordinal, statistics) in known {
                match table.statistics.get_mut(ordinal as usize) {
                    Some(place) => *place = statistics,
                    None => return internal_err!("a filter of column {ordinal}, which is none"),
                }
            }
            filters.push(filter);
        }
        let columns = table.scan_schema.fields().len();
        let mut keys = record.key_filters.iter();
        if keys.any(|filter| filter.ordinal as usize >= columns) {
            return internal_err!("keys of a column that is none of {columns}");
        }
        let outputs = schema.fields().len();
        let null_for_zero = record.null_for_zero.iter();
        let null_for_zero: Vec<_> = null_for_zero.map(|index| *index as usize).collect();
        if null_for_zero.iter().any(|index| *index >= outputs) {
            return internal_err!("a count that is none of {outputs} columns");
        }
        let pushed = program.filter.iter().map(|expr| PushedFilter {
            expr: tree::map_columns(expr, &ordinal),
            text: expr.to_string(),
            exact: true,
        });
        let spec = ScanSpec {
            filters: pushed.collect(),
            output: tree::map_output_columns(&program.output, &ordinal),
            accelerator: command.accelerator,
            forbids_fallback: command.forbids_fallback,
            plain_text: command.plain_text,
            dynamic_filters: filters,
            key_filters: record.key_filters.clone(),
            null_for_zero,
            ..ScanSpec::new(Arc::new(table), command.capability, Pushdown::Always)
        };
        let partitions = record.partitions.min(PARTITIONS_MAX) as usize;
        let node = Arc::clone(&self.node);
        FlashScanExec::new(spec, node, program, schema, partitions)
            .map_err(crate::Reason::into_error)
    }

    fn exchange_record(
        &self,
        exchange: &LocalExchangeExec,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<ExchangeRecord> {
        let (keys, partitions) = exchange.keys();
        let keys = keys.iter();
        let keys = keys.map(|key| converter.physical_expr_to_proto(key, self));
        Ok(ExchangeRecord {
            keys: keys.collect::<Result<_>>()?,
            partitions: u32::try_from(partitions).unwrap_or(PARTITIONS_MAX),
            preserves_order: exchange.preserves_order(),
        })
    }

    fn exchange(
        &self,
        record: &ExchangeRecord,
        input: &Arc<dyn ExecutionPlan>,
        context: &TaskContext,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<LocalExchangeExec> {
        if !(1..=PARTITIONS_MAX).contains(&record.partitions) {
            return internal_err!("an exchange in {} streams", record.partitions);
        }
        let decoding = PhysicalPlanDecodeContext::new(context, self);
        let schema = input.schema();
        let keys = record.keys.iter();
        let keys = keys.map(|key| converter.proto_to_physical_expr(key, &schema, &decoding));
        let keys = keys.collect::<Result<Vec<_>>>()?;
        let partitioning = Partitioning::Hash(keys, record.partitions as usize);
        LocalExchangeExec::new(Arc::clone(input), partitioning, record.preserves_order)
    }

    fn leading_rows_record(
        &self,
        leading: &LeadingRowsExec,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<LeadingRowsRecord> {
        let partition = leading.partition().iter();
        let partition = partition.map(|key| converter.physical_expr_to_proto(key, self));
        let order = leading.order().iter().map(|key| {
            Ok(OrderRecord {
                expr: converter.physical_expr_to_proto(&key.expr, self)?,
                descending: key.options.descending,
                nulls_first: key.options.nulls_first,
            })
        });
        Ok(LeadingRowsRecord {
            partition: partition.collect::<Result<_>>()?,
            order: order.collect::<Result<_>>()?,
            most: leading.most() as u32,
            ties: leading.ties(),
        })
    }

    fn leading_rows(
        &self,
        record: &LeadingRowsRecord,
        input: &Arc<dyn ExecutionPlan>,
        context: &TaskContext,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<LeadingRowsExec> {
        let decoding = PhysicalPlanDecodeContext::new(context, self);
        let schema = input.schema();
        let expr = |expr| converter.proto_to_physical_expr(expr, &schema, &decoding);
        let partition = record.partition.iter().map(expr);
        let order = record.order.iter().map(|key| {
            let options = SortOptions::new(key.descending, key.nulls_first);
            Ok(PhysicalSortExpr::new(expr(&key.expr)?, options))
        });
        LeadingRowsExec::new(
            Arc::clone(input),
            partition.collect::<Result<_>>()?,
            order.collect::<Result<_>>()?,
            record.most as usize,
            record.ties,
        )
    }

    fn join_keys_record(
        &self,
        keys: &JoinKeysExec,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<JoinKeysRecord> {
        let of_keys = keys.keys().iter().map(|key| {
            Ok(JoinKeyRecord {
                expr: converter.physical_expr_to_proto(&key.expr, self)?,
                least: key.span.map(|(least, _)| least),
                greatest: key.span.map(|(_, greatest)| greatest),
            })
        });
        Ok(JoinKeysRecord {
            join: keys.join(),
            keys: of_keys.collect::<Result<_>>()?,
        })
    }

    fn join_keys(
        &self,
        record: &JoinKeysRecord,
        input: &Arc<dyn ExecutionPlan>,
        context: &TaskContext,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<JoinKeysExec> {
        let decoding = PhysicalPlanDecodeContext::new(context, self);
        let schema = input.schema();
        let keys = record.keys.iter().map(|key| {
            let expr = converter.proto_to_physical_expr(&key.expr, &schema, &decoding)?;
            Ok((expr, key.least.zip(key.greatest)))
        });
        let keys = keys.collect::<Result<Vec<_>>>()?;
        JoinKeysExec::new(Arc::clone(input), record.join, keys)
    }

    /// A filter, and what is known of columns of the table.
    fn filter(
        &self,
        record: &FilterRecord,
        context: &TaskContext,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<(DynamicFilter, Vec<(u32, ColumnStatistics)>)> {
        let schema = schema_of(&record.schema)?;
        if schema.fields().len() != record.columns.len() {
            return internal_err!("a filter of other columns than it says");
        }
        let decoding = PhysicalPlanDecodeContext::new(context, self);
        let known = record.columns.iter().filter_map(|column| {
            let statistics = ColumnStatistics {
                min: column.min.map(|value| Scalar::Int(value.into())),
                max: column.max.map(|value| Scalar::Int(value.into())),
                distinct: column.distinct,
                ..ColumnStatistics::default()
            };
            Some((column.ordinal?, statistics))
        });
        let known = known.collect();
        let filter = DynamicFilter {
            expr: converter.proto_to_physical_expr(&record.expr, &schema, &decoding)?,
            ordinals: record.columns.iter().map(|column| column.ordinal).collect(),
            schema,
        };
        Ok((filter, known))
    }
}

fn schema_of(record: &SchemaRecord) -> Result<SchemaRef> {
    Ok(Arc::new(Schema::try_from(record)?))
}

impl PhysicalExtensionCodec for ScanCodec {
    fn try_decode(
        &self,
        buf: &[u8],
        inputs: &[Arc<dyn ExecutionPlan>],
        context: &TaskContext,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let record = OperatorRecord::decode(buf)
            .map_err(|error| internal_datafusion_err!("what came is no operator: {error}"))?;
        Ok(match (record.operator, inputs) {
            (Some(Operator::Scan(scan)), []) => Arc::new(self.scan(&scan, context, converter)?),
            (Some(Operator::Exchange(exchange)), [input]) => {
                Arc::new(self.exchange(&exchange, input, context, converter)?)
            }
            (Some(Operator::JoinKeys(keys)), [input]) => {
                Arc::new(self.join_keys(&keys, input, context, converter)?)
            }
            (Some(Operator::LeadingRows(leading)), [input]) => {
                Arc::new(self.leading_rows(&leading, input, context, converter)?)
            }
            (Some(Operator::SortedRanks(_)), [window]) => {
                Arc::new(SortedRanksExec::new(Arc::clone(window)))
            }
            (Some(Operator::Forgetting(_)), [input]) => Arc::new(ForgettingExec::new(input)),
            (Some(Operator::Slicing(rows)), [input]) => {
                let rows = usize::try_from(rows).unwrap_or(usize::MAX);
                Arc::new(SlicingExec::new(input, rows))
            }
            _ => return internal_err!("what came is an operator of other inputs"),
        })
    }

    fn try_encode(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        buf: &mut Vec<u8>,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<()> {
        let operator = if let Some(scan) = plan.downcast_ref::<FlashScanExec>() {
            Operator::Scan(self.record(scan, converter)?)
        } else if let Some(exchange) = plan.downcast_ref::<LocalExchangeExec>() {
            Operator::Exchange(self.exchange_record(exchange, converter)?)
        } else if let Some(keys) = plan.downcast_ref::<JoinKeysExec>() {
            Operator::JoinKeys(self.join_keys_record(keys, converter)?)
        } else if let Some(leading) = plan.downcast_ref::<LeadingRowsExec>() {
            Operator::LeadingRows(self.leading_rows_record(leading, converter)?)
        } else if plan.is::<SortedRanksExec>() {
            Operator::SortedRanks(true)
        } else if plan.is::<ForgettingExec>() {
            Operator::Forgetting(true)
        } else if let Some(slicing) = plan.downcast_ref::<SlicingExec>() {
            Operator::Slicing(slicing.rows() as u64)
        } else {
            return internal_err!("{} has no form for other nodes", plan.name());
        };
        let record = OperatorRecord {
            operator: Some(operator),
        };
        let encoded = record.encode(buf);
        encoded.map_err(|error| internal_datafusion_err!("{error}"))
    }
}
