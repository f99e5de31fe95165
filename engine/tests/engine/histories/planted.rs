//! Planted anomalies: the checker catches each, by its name, and finds none where there is none. All
//! transactions of a history overlap here, so that only what was read tells, but for the last test.

use std::collections::BTreeSet;

use super::checker::{Anomaly, Id, Key, Kind, Op, Span, Transaction, check};

const COMMITTED: bool = true;
const REFUSED: bool = false;

/// Transactions T1, T2, … of which each overlaps all others.
fn overlapping(isolation: &[bool], transactions: &[(bool, &[Op])]) -> Vec<Transaction> {
    let count = transactions.len() as u64;
    let of = |(n, (is_committed, ops)): (u64, &(bool, &[Op]))| Transaction {
        id: n + 1,
        is_serializable: isolation[n as usize % isolation.len()],
        is_committed: *is_committed,
        begin: Span {
            called: n,
            returned: 3 * count + n,
        },
        end: Span {
            called: count + n,
            returned: 4 * count + n,
        },
        ops: ops.to_vec(),
    };
    (0..).zip(transactions).map(of).collect()
}

fn kinds(anomalies: &[Anomaly]) -> BTreeSet<Kind> {
    anomalies.iter().map(|anomaly| anomaly.kind).collect()
}

/// What the checker says of it where all transactions have snapshot isolation, and where all are
/// serialisable.
fn found(transactions: &[(bool, &[Op])]) -> [BTreeSet<Kind>; 2] {
    [false, true].map(|level| kinds(&check(&overlapping(&[level], transactions))))
}

const X: Key = 1;
const Y: Key = 2;

fn list(key: Key, elements: &[u64]) -> Op {
    Op::ReadList(key, elements.to_vec())
}

fn set(key: Key, elements: &[u64]) -> Op {
    Op::ReadSet(key, elements.iter().copied().collect())
}

#[test]
fn histories_without_anomalies_have_none() {
    // Two after each other, whoever was called first.
    let clean: [&[(bool, &[Op])]; 4] = [
        &[
            (
                COMMITTED,
                &[list(X, &[1]), Op::Append(X, 2), list(X, &[1, 2])],
            ),
            (COMMITTED, &[list(X, &[]), Op::Append(X, 1)]),
            (COMMITTED, &[list(X, &[1, 2])]),
        ],
        &[
            (
                COMMITTED,
                &[
                    Op::ReadRegister(X, None),
                    Op::Write(X, 1),
                    Op::ReadRegister(X, Some((1, 1))),
                ],
            ),
            (
                COMMITTED,
                &[
                    Op::ReadRegister(X, Some((1, 1))),
                    Op::Write(X, 2),
                    Op::Write(X, 3),
                ],
            ),
            (COMMITTED, &[Op::ReadRegister(X, Some((3, 2)))]),
        ],
        &[
            (COMMITTED, &[set(X, &[]), Op::Add(X, 1), set(X, &[1])]),
            (REFUSED, &[set(X, &[1]), Op::Add(X, 2), set(X, &[1, 2])]),
            (COMMITTED, &[set(X, &[1]), Op::Sum(7, 7)]),
        ],
        // A refused one has read over what it was refused for.
        &[
            (COMMITTED, &[list(X, &[]), Op::Append(X, 1)]),
            (REFUSED, &[list(X, &[]), Op::Append(X, 2), list(X, &[2])]),
        ],
    ];
    for history in clean {
        assert_eq!(found(history), [BTreeSet::new(), BTreeSet::new()]);
    }
}

#[test]
fn write_skew_is_for_snapshot_isolation_alone() {
    let skew: [&[(bool, &[Op])]; 3] = [
        &[
            (COMMITTED, &[list(X, &[]), list(Y, &[]), Op::Append(X, 1)]),
            (COMMITTED, &[list(X, &[]), list(Y, &[]), Op::Append(Y, 2)]),
            (COMMITTED, &[list(X, &[1]), list(Y, &[2])]),
        ],
        // By rows that were not there.
        &[
            (COMMITTED, &[set(X, &[]), Op::Add(X, 1)]),
            (COMMITTED, &[set(X, &[]), Op::Add(X, 2)]),
        ],
        &[
            (COMMITTED, &[Op::ReadRegister(X, None), Op::Write(Y, 1)]),
            (COMMITTED, &[Op::ReadRegister(Y, None), Op::Write(X, 1)]),
        ],
    ];
    for history in skew {
        assert_eq!(
            found(history),
            [BTreeSet::new(), BTreeSet::from([Kind::G2])]
        );
        // One that is serialisable does not keep others from it; the level is each one's own.
        let mixed = check(&overlapping(&[false, true], history));
        assert_eq!(kinds(&mixed), BTreeSet::new());
    }
}

/// Transactions one after the other: whether each was committed, and what it did.
type Transactions<'a> = &'a [(bool, &'a [Op])];

#[test]
fn each_anomaly_is_caught_by_its_name() {
    let planted: [(Kind, Transactions<'_>); 17] = [
        // Both added to the same version, and one of the additions is gone, or not.
        (
            Kind::LostUpdate,
            &[
                (COMMITTED, &[Op::ReadRegister(X, None), Op::Write(X, 1)]),
                (COMMITTED, &[Op::ReadRegister(X, None), Op::Write(X, 1)]),
            ],
        ),
        (
            Kind::LostUpdate,
            &[
                (COMMITTED, &[list(X, &[]), Op::Append(X, 1)]),
                (COMMITTED, &[list(X, &[]), Op::Append(X, 2)]),
                (COMMITTED, &[list(X, &[1, 2])]),
            ],
        ),
        (
            Kind::GSingle,
            &[
                (COMMITTED, &[list(X, &[]), Op::Append(X, 1)]),
                (COMMITTED, &[list(X, &[]), Op::Append(X, 2)]),
                (COMMITTED, &[list(X, &[1, 2])]),
            ],
        ),
        // A torn commit: a reader sees one table's part of it alone.
        (
            Kind::GSingle,
            &[
                (COMMITTED, &[Op::Append(X, 1), Op::Append(Y, 1)]),
                (COMMITTED, &[list(X, &[1]), list(Y, &[])]),
            ],
        ),
        (
            Kind::GSingle,
            &[
                (COMMITTED, &[Op::Add(X, 1), Op::Write(Y, 1)]),
                (COMMITTED, &[set(X, &[]), Op::ReadRegister(Y, Some((1, 1)))]),
            ],
        ),
        (Kind::WrongSum, &[(COMMITTED, &[Op::Sum(90, 100)])]),
        // Dirty reads: of what is rolled back, of what is written over, of each other.
        (
            Kind::G1a,
            &[
                (REFUSED, &[Op::Append(X, 1)]),
                (COMMITTED, &[list(X, &[1])]),
            ],
        ),
        (
            Kind::G1a,
            &[
                (REFUSED, &[Op::Write(X, 1)]),
                (REFUSED, &[Op::ReadRegister(X, Some((1, 1)))]),
            ],
        ),
        (
            Kind::G1b,
            &[
                (COMMITTED, &[Op::Append(X, 1), Op::Append(X, 2)]),
                (COMMITTED, &[list(X, &[1])]),
            ],
        ),
        (
            Kind::G1c,
            &[
                (COMMITTED, &[Op::Append(X, 1), list(Y, &[2])]),
                (COMMITTED, &[Op::Append(Y, 2), list(X, &[1])]),
            ],
        ),
        (
            Kind::G0,
            &[
                (COMMITTED, &[Op::Append(X, 1), Op::Append(Y, 2)]),
                (COMMITTED, &[Op::Append(X, 3), Op::Append(Y, 4)]),
                (COMMITTED, &[list(X, &[1, 3]), list(Y, &[4, 2])]),
            ],
        ),
        // A long fork: two readers see two commits in different orders.
        (
            Kind::GNonadjacent,
            &[
                (COMMITTED, &[Op::Append(X, 1)]),
                (COMMITTED, &[Op::Append(Y, 2)]),
                (COMMITTED, &[list(X, &[1]), list(Y, &[])]),
                (COMMITTED, &[list(X, &[]), list(Y, &[2])]),
            ],
        ),
        (
            Kind::Internal,
            &[
                (COMMITTED, &[Op::Append(X, 1)]),
                (COMMITTED, &[list(X, &[]), list(X, &[1])]),
            ],
        ),
        (
            Kind::Internal,
            &[(COMMITTED, &[Op::Add(X, 1), set(X, &[])])],
        ),
        (Kind::Garbage, &[(COMMITTED, &[list(X, &[7])])]),
        (
            Kind::Duplicate,
            &[
                (COMMITTED, &[Op::Append(X, 1)]),
                (COMMITTED, &[list(X, &[1, 1])]),
            ],
        ),
        (
            Kind::IncompatibleOrder,
            &[
                (COMMITTED, &[Op::Append(X, 1)]),
                (COMMITTED, &[Op::Append(X, 2)]),
                (COMMITTED, &[list(X, &[1, 2])]),
                (COMMITTED, &[list(X, &[2])]),
            ],
        ),
    ];
    for (kind, history) in planted {
        for kinds in found(history) {
            assert!(kinds.contains(&kind), "{kind:?}: {kinds:?}");
        }
    }
}

#[test]
fn time_tells_of_lost_and_stale_and_concurrent_writes() {
    let in_time = |transactions: [(u64, u64, &[Op]); 3]| {
        let of = |(id, (from, to, ops)): (Id, (u64, u64, &[Op]))| Transaction {
            id,
            is_serializable: false,
            is_committed: COMMITTED,
            begin: Span {
                called: from,
                returned: from + 1,
            },
            end: Span {
                called: to - 1,
                returned: to,
            },
            ops: ops.to_vec(),
        };
        let history: Vec<_> = (1..).zip(transactions).map(of).collect();
        let found = check(&history);
        assert!(found.iter().all(|anomaly| anomaly.is_of_time), "{found:?}");
        kinds(&found)
    };
    // What had been committed is gone.
    let lost = in_time([
        (0, 3, &[Op::Append(X, 1)]),
        (10, 13, &[Op::Add(Y, 1)]),
        (20, 23, &[list(X, &[]), set(Y, &[1])]),
    ]);
    assert_eq!(lost, BTreeSet::from([Kind::GSingle]));
    // One began before the other committed, and wrote to the same row all the same.
    let concurrent = in_time([
        (0, 13, &[Op::Append(X, 1)]),
        (10, 23, &[Op::Append(X, 2)]),
        (30, 33, &[list(X, &[1, 2])]),
    ]);
    assert_eq!(concurrent, BTreeSet::from([Kind::G0]));
    let after = in_time([
        (0, 3, &[Op::Append(X, 1)]),
        (10, 23, &[Op::Append(X, 2)]),
        (11, 33, &[list(X, &[1])]),
    ]);
    assert_eq!(after, BTreeSet::new());
}
