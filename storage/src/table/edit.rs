//! What a commit changes.
//!
//! A [`TableEdit`] is made from the version that its maker saw, without a lock. It says what must
//! still hold when its turn comes and what it changes, in terms of the catalog's records alone;
//! the catalog and the state in memory each apply the same operations.

use prost::{Message, Oneof};

use crate::index::IndexPart;
use crate::segment::TableId;
use crate::store::{MEMORY_CARD, PageAddress};
use crate::table::database::{FORMAT_VERSION, FORMAT_WITHOUT_ACCOUNTS, FORMAT_WITHOUT_PAST};
use crate::table::manifest::{
    AccountsRecord, FunctionRecord, PartRecord, SegmentRecord, TableRecord, ViewRecord,
};

/// One atomic change, to one or several tables.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TableEdit {
    #[prost(message, repeated, tag = "1")]
    preconditions: Vec<PreconditionRecord>,
    #[prost(message, repeated, tag = "2")]
    operations: Vec<OperationRecord>,
}

#[derive(Clone, PartialEq, Message)]
struct PreconditionRecord {
    #[prost(oneof = "Precondition", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10")]
    precondition: Option<Precondition>,
}

#[derive(Clone, PartialEq, Message)]
struct OperationRecord {
    #[prost(
        oneof = "Operation",
        tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18"
    )]
    operation: Option<Operation>,
}

/// What must hold.
#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Precondition {
    /// The schema is there.
    #[prost(string, tag = "1")]
    Schema(String),
    /// No schema has that name.
    #[prost(string, tag = "2")]
    NoSchema(String),
    /// The schema has neither tables nor views, but for those that the edit drops.
    #[prost(string, tag = "3")]
    EmptySchema(String),
    /// The table is at the version that the edit was made from.
    #[prost(message, tag = "4")]
    Version(TableVersion),
    /// No table has that name.
    #[prost(message, tag = "5")]
    NoTable(ObjectName),
    /// No view has that name.
    #[prost(message, tag = "6")]
    NoView(ObjectName),
    /// After the edit no two indexes of the schema have that name.
    #[prost(message, tag = "7")]
    NoIndex(ObjectName),
    /// The function is at this version.
    #[prost(message, tag = "8")]
    Function(FunctionVersion),
    /// The view is there.
    #[prost(message, tag = "9")]
    View(ObjectName),
    /// The accounts are at this version.
    #[prost(uint64, tag = "10")]
    Accounts(u64),
}

/// What is changed.
#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Operation {
    #[prost(string, tag = "1")]
    PutSchema(String),
    #[prost(string, tag = "2")]
    DropSchema(String),
    /// Makes a table, or changes what is kept of it beside segments and parts.
    #[prost(message, tag = "3")]
    PutTable(PutTable),
    /// Drops a table with all that it has.
    #[prost(message, tag = "4")]
    DropTable(DropTable),
    #[prost(message, tag = "5")]
    PutSegment(PutSegment),
    /// Drops a table's segments.
    #[prost(uint32, tag = "6")]
    DropSegments(u32),
    #[prost(message, tag = "7")]
    PutPart(PutPart),
    #[prost(message, tag = "8")]
    DropPart(DropPart),
    #[prost(message, tag = "9")]
    PutFunction(PutFunction),
    #[prost(string, tag = "10")]
    DropFunction(String),
    #[prost(message, tag = "11")]
    PutView(PutView),
    #[prost(message, tag = "12")]
    DropView(ObjectName),
    #[prost(message, tag = "13")]
    PutDeleted(PutDeleted),
    #[prost(message, tag = "14")]
    ReplaceSegments(ReplaceSegments),
    /// A table loses this name; it is put with another one next.
    #[prost(message, tag = "15")]
    RenameTable(ObjectName),
    /// Pages of a segment or a part are on a card now.
    #[prost(message, tag = "16")]
    MovePages(MovePages),
    /// The past versions of a table before this one are forgotten.
    #[prost(message, tag = "17")]
    ExpireVersions(TableVersion),
    /// Puts these in the place of all accounts.
    #[prost(message, tag = "18")]
    PutAccounts(AccountsRecord),
}

#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Message)]
pub(super) struct ObjectName {
    #[prost(string, tag = "1")]
    pub schema: String,
    #[prost(string, tag = "2")]
    pub name: String,
}

impl ObjectName {
    pub fn new(schema: &str, name: &str) -> Self {
        Self {
            schema: schema.into(),
            name: name.into(),
        }
    }
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TableVersion {
    #[prost(uint32, tag = "1")]
    pub table: u32,
    #[prost(uint64, tag = "2")]
    pub version: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct FunctionVersion {
    #[prost(string, tag = "1")]
    pub name: String,
    /// 0: there is none.
    #[prost(uint32, tag = "2")]
    pub version: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PutTable {
    #[prost(message, required, tag = "1")]
    pub name: ObjectName,
    #[prost(uint32, tag = "2")]
    pub table: u32,
    #[prost(message, required, tag = "3")]
    pub record: TableRecord,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct DropTable {
    #[prost(message, required, tag = "1")]
    pub name: ObjectName,
    #[prost(uint32, tag = "2")]
    pub table: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PutSegment {
    #[prost(uint32, tag = "1")]
    pub table: u32,
    #[prost(uint32, tag = "2")]
    pub segment: u32,
    #[prost(message, required, tag = "3")]
    pub record: SegmentRecord,
}

/// Puts segments in the place of others.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ReplaceSegments {
    #[prost(uint32, tag = "1")]
    pub table: u32,
    /// Neighbours in the row order, or those of one bucket, which go.
    #[prost(uint32, repeated, tag = "2")]
    pub dropped: Vec<u32>,
    /// At most as many, which take their places: the catalog sets their `order`.
    #[prost(message, repeated, tag = "3")]
    pub put: Vec<PutSegment>,
}

/// Says where pages of a segment or of a part of an index are: those that were in memory, or that
/// collection has moved.
#[derive(Clone, PartialEq, Message)]
pub(super) struct MovePages {
    #[prost(uint32, tag = "1")]
    pub table: u32,
    #[prost(oneof = "Owner", tags = "2, 3, 7")]
    pub owner: Option<Owner>,
    /// The numbers of the first pages of runs in memory, or on cards.
    #[prost(uint64, repeated, tag = "4")]
    pub from: Vec<u64>,
    /// Where each of them is on a card.
    #[prost(uint64, repeated, tag = "5")]
    pub to: Vec<u64>,
    /// They were on cards. Such an edit is never in the log, which earlier builds may read.
    #[prost(bool, tag = "6")]
    pub on_card: bool,
}

/// Whose pages.
#[derive(Clone, Copy, PartialEq, Oneof)]
pub(super) enum Owner {
    #[prost(uint32, tag = "2")]
    Segment(u32),
    #[prost(uint32, tag = "3")]
    Part(u32),
    /// A segment that only the table's past has.
    #[prost(uint32, tag = "7")]
    Past(u32),
}

impl MovePages {
    /// Where a run is, by its first page.
    pub fn place_of(&self, first: PageAddress) -> PageAddress {
        let is_of_card = (first.card == MEMORY_CARD) != self.on_card;
        let mut from = self.from.iter();
        let number = first.number();
        let moved = from.position(|page| is_of_card && *page == number);
        let to = moved.and_then(|place| self.to.get(place));
        to.map_or(first, |number| PageAddress::of_number(*number))
    }
}

/// Sets which rows of a segment are deleted.
#[derive(Clone, PartialEq, Message)]
pub(super) struct PutDeleted {
    #[prost(uint32, tag = "1")]
    pub table: u32,
    #[prost(uint32, tag = "2")]
    pub segment: u32,
    /// As [`SegmentRecord::deleted`].
    #[prost(bytes = "vec", tag = "3")]
    pub deleted: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PutPart {
    #[prost(uint32, tag = "1")]
    pub table: u32,
    #[prost(uint32, tag = "2")]
    pub part: u32,
    #[prost(message, required, tag = "3")]
    pub record: PartRecord,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct DropPart {
    #[prost(uint32, tag = "1")]
    pub table: u32,
    #[prost(uint32, tag = "2")]
    pub part: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PutFunction {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, required, tag = "2")]
    pub record: FunctionRecord,
    #[prost(bytes = "vec", tag = "3")]
    pub package: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PutView {
    #[prost(message, required, tag = "1")]
    pub name: ObjectName,
    #[prost(message, required, tag = "2")]
    pub record: ViewRecord,
}

impl TableEdit {
    /// Adds a precondition.
    pub fn require(&mut self, precondition: Precondition) {
        self.preconditions.push(PreconditionRecord {
            precondition: Some(precondition),
        });
    }

    /// Adds an operation; they are applied in order.
    pub fn push(&mut self, operation: Operation) {
        self.operations.push(OperationRecord {
            operation: Some(operation),
        });
    }

    pub fn preconditions(&self) -> impl Iterator<Item = &Precondition> {
        let records = self.preconditions.iter();
        records.filter_map(|record| record.precondition.as_ref())
    }

    pub fn operations(&self) -> impl Iterator<Item = &Operation> {
        let records = self.operations.iter();
        records.filter_map(|record| record.operation.as_ref())
    }

    /// The format of the catalog that has this: earlier builds would take pages for free that columns
    /// share, and let in whom the accounts would not.
    pub fn format(&self) -> u32 {
        match (self.puts_accounts(), self.shares_pages()) {
            (true, _) => FORMAT_VERSION,
            (false, true) => FORMAT_WITHOUT_ACCOUNTS,
            (false, false) => FORMAT_WITHOUT_PAST,
        }
    }

    /// Whether it puts accounts.
    pub fn puts_accounts(&self) -> bool {
        let is_put = |operation: &Operation| matches!(operation, Operation::PutAccounts(_));
        self.operations().any(is_put)
    }

    /// Whether it puts segments of which columns share pages.
    fn shares_pages(&self) -> bool {
        let of = |put: &PutSegment| put.record.shared.is_some();
        self.operations().any(|operation| match operation {
            Operation::PutSegment(put) => of(put),
            Operation::ReplaceSegments(replace) => replace.put.iter().any(of),
            _ => false,
        })
    }

    /// Goes on with another edit: of what that requires, what this one brings about need not hold
    /// before.
    pub fn then(&mut self, later: Self) {
        for record in later.preconditions {
            let is_own = |precondition: &Precondition| self.brings_about(precondition);
            if !record.precondition.as_ref().is_some_and(is_own) {
                self.preconditions.push(record);
            }
        }
        self.operations.extend(later.operations);
    }

    fn brings_about(&self, precondition: &Precondition) -> bool {
        let any = |is_it: &dyn Fn(&Operation) -> bool| self.operations().any(is_it);
        match precondition {
            Precondition::Schema(name) => any(&|o| *o == Operation::PutSchema(name.clone())),
            Precondition::NoSchema(name) => any(&|o| *o == Operation::DropSchema(name.clone())),
            Precondition::NoTable(name) => any(&|o| match o {
                Operation::DropTable(dropped) => dropped.name == *name,
                Operation::RenameTable(from) => from == name,
                _ => false,
            }),
            Precondition::View(name) => {
                any(&|o| matches!(o, Operation::PutView(put) if put.name == *name))
            }
            Precondition::NoView(name) => any(&|o| *o == Operation::DropView(name.clone())),
            Precondition::Version(version) => any(&|o| {
                let is_it = |put: &PutTable| {
                    (put.table, put.record.version) == (version.table, version.version)
                };
                matches!(o, Operation::PutTable(put) if is_it(put))
            }),
            Precondition::EmptySchema(_)
            | Precondition::NoIndex(_)
            | Precondition::Function(_)
            | Precondition::Accounts(_) => false,
        }
    }

    /// The names of the tables and views that it drops.
    pub fn dropped(&self) -> impl Iterator<Item = &ObjectName> {
        self.operations().filter_map(|operation| match operation {
            Operation::DropTable(drop) => Some(&drop.name),
            Operation::DropView(name) => Some(name),
            _ => None,
        })
    }

    /// The names of the tables that it puts.
    pub fn tables(&self) -> impl Iterator<Item = &ObjectName> {
        self.operations().filter_map(|operation| match operation {
            Operation::PutTable(put) => Some(&put.name),
            _ => None,
        })
    }

    /// The greatest numbers of a table, and of a generation, that it puts; 0 without any.
    pub fn greatest_numbers(&self) -> (u32, u32) {
        let numbers = self.operations().map(|operation| match operation {
            Operation::PutTable(put) => (put.table, 0),
            Operation::PutSegment(put) => (put.table, put.record.generation),
            Operation::PutPart(put) => (put.table, put.record.generation),
            _ => (0, 0),
        });
        numbers.fold((0, 0), |(a, b), (c, d)| (a.max(c), b.max(d)))
    }

    /// Has the tables that it puts be of this version.
    pub fn set_version(&mut self, version: u64) {
        for record in &mut self.operations {
            if let Some(Operation::PutTable(put)) = &mut record.operation {
                put.record.version = version;
            }
        }
    }

    /// Whether it puts a table whose past versions are kept.
    pub fn keeps_history(&self) -> bool {
        self.operations().any(|operation| {
            matches!(operation, Operation::PutTable(put) if put.record.retention_us > 0)
        })
    }

    /// Has the versions of tables that it puts be of this time, where their past is kept.
    pub fn set_time(&mut self, time_us: u64) {
        for record in &mut self.operations {
            if let Some(Operation::PutTable(put)) = &mut record.operation {
                put.record.committed_at_us = match put.record.retention_us {
                    0 => 0,
                    _ => time_us,
                };
            }
        }
    }

    /// Drops a part of an index.
    pub fn drop_part(&mut self, table: TableId, part: &IndexPart) {
        self.push(Operation::DropPart(DropPart {
            table: table.0,
            part: part.id.0,
        }));
    }
}
