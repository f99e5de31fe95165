//! The orders that a history asks for, as a graph of points: where transactions begin, where they
//! commit, and moments between. A cycle is an anomaly.

use std::collections::{BTreeSet, HashMap, VecDeque};

use super::checker::{Anomaly, Key, Kind, Transaction};

/// How one transaction depends on another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dependency {
    Ww,
    Wr,
    Rw,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Label {
    Depends(Dependency, Key),
    /// A transaction begins before it commits.
    Within,
    /// What had returned came before what was called then.
    Time,
}

#[derive(Debug, Clone, Copy)]
struct Edge {
    from: usize,
    to: usize,
    label: Label,
}

/// The graph. Points `2 n` and `2 n + 1` are begin and commit of the `n`th transaction.
pub struct Graph<'a> {
    history: &'a [Transaction],
    points: usize,
    edges: Vec<Edge>,
}

impl<'a> Graph<'a> {
    /// With what is known from time alone. Each call that returned is a moment; moments follow each
    /// other, a point lies before the moment at which its call returned, and after the last one
    /// before it was called. So the order in time takes no more edges than there are calls.
    pub fn new(history: &'a [Transaction]) -> Self {
        let spans = |(n, t): (usize, &Transaction)| [(2 * n, t.begin), (2 * n + 1, t.end)];
        let spans: Vec<_> = history.iter().enumerate().flat_map(spans).collect();
        let mut moments: Vec<u64> = spans.iter().map(|(_, span)| span.returned).collect();
        moments.sort_unstable();
        moments.dedup();
        let first_moment = 2 * history.len();
        let mut graph = Graph {
            history,
            points: first_moment + moments.len(),
            edges: Vec::new(),
        };
        for n in 0..history.len() {
            graph.order(2 * n, 2 * n + 1, Label::Within);
        }
        for moment in 1..moments.len() {
            graph.order(
                first_moment + moment - 1,
                first_moment + moment,
                Label::Time,
            );
        }
        for (point, span) in spans {
            let returned = moments.partition_point(|moment| *moment < span.returned);
            graph.order(point, first_moment + returned, Label::Time);
            let called = moments.partition_point(|moment| *moment < span.called);
            if let Some(before) = called.checked_sub(1) {
                graph.order(first_moment + before, point, Label::Time);
            }
        }
        graph
    }

    fn order(&mut self, from: usize, to: usize, label: Label) {
        self.edges.push(Edge { from, to, label });
    }

    /// The transaction at place `to` depends on that at `from`, by the object `key`.
    pub fn depends(&mut self, from: usize, to: usize, dependency: Dependency, key: Key) {
        if from == to {
            return;
        }
        let transaction = &self.history[from];
        let begins = 2 * from;
        let commits = begins + 1;
        let is_writer = transaction.has_writes();
        let (from, to) = match dependency {
            Dependency::Ww | Dependency::Wr => (commits, 2 * to),
            Dependency::Rw
                if transaction.is_serializable && transaction.is_committed && is_writer =>
            {
                (commits, 2 * to + 1)
            }
            Dependency::Rw => (begins, 2 * to + 1),
        };
        self.order(from, to, Label::Depends(dependency, key));
    }

    /// The shortest cycles, those of fewer kinds of dependency first, so that each has the worst
    /// name that it can have.
    pub fn anomalies(&self) -> Vec<Anomaly> {
        /// For each choice of dependencies.
        const MAX: usize = 4;
        /// A broken history may have as many cycles as edges.
        const MAX_TRIED: usize = 50;
        use Dependency::{Rw, Wr, Ww};
        let mut anomalies = Vec::new();
        let mut seen = BTreeSet::new();
        for (dependencies, time) in [
            (&[Ww][..], false),
            (&[Ww, Wr], false),
            (&[Ww, Wr, Rw], false),
            (&[Ww], true),
            (&[Ww, Wr], true),
            (&[Ww, Wr, Rw], true),
        ] {
            let edges = self.edges.iter().filter(|edge| match edge.label {
                Label::Depends(dependency, _) => dependencies.contains(&dependency),
                Label::Within => true,
                Label::Time => time,
            });
            let edges = on_cycles(self.points, edges.copied().collect());
            let mut out: HashMap<usize, Vec<Edge>> = HashMap::new();
            for edge in &edges {
                out.entry(edge.from).or_default().push(*edge);
            }
            let depends = |edge: &Edge| matches!(edge.label, Label::Depends(..));
            let tried = edges.into_iter().filter(depends).take(MAX_TRIED);
            let mut cycles: Vec<_> = tried.filter_map(|e| shortest_cycle(&out, e)).collect();
            cycles.sort_by_key(Vec::len);
            cycles.retain(|cycle| {
                let points: BTreeSet<_> = cycle.iter().map(|edge| edge.from / 2).collect();
                let of_history = points.into_iter().filter(|n| *n < self.history.len());
                seen.insert(of_history.collect::<Vec<_>>())
            });
            anomalies.extend(cycles.iter().take(MAX).map(|cycle| self.anomaly(cycle)));
        }
        anomalies
    }

    fn anomaly(&self, cycle: &[Edge]) -> Anomaly {
        let dependencies: Vec<_> = cycle
            .iter()
            .filter(|edge| edge.label != Label::Within)
            .map(|edge| match edge.label {
                Label::Depends(dependency, _) => Some(dependency),
                _ => None,
            })
            .collect();
        let rw = |at: usize| dependencies[at % dependencies.len()] == Some(Dependency::Rw);
        let count = (0..dependencies.len()).filter(|at| rw(*at)).count();
        let follow_each_other = (0..dependencies.len()).any(|at| rw(at) && rw(at + 1));
        let kind = match count {
            0 if dependencies.contains(&Some(Dependency::Wr)) => Kind::G1c,
            0 => Kind::G0,
            1 => Kind::GSingle,
            _ if follow_each_other => Kind::G2,
            _ => Kind::GNonadjacent,
        };
        let mut why = String::new();
        for edge in cycle {
            let name = match (edge.from < 2 * self.history.len(), edge.from % 2) {
                (true, 0) => format!("T{} begins", self.history[edge.from / 2].id),
                (true, _) => format!("T{} commits", self.history[edge.from / 2].id),
                (false, _) => continue,
            };
            let by = match edge.label {
                Label::Depends(dependency, key) => format!("{dependency:?} of {key}"),
                Label::Within => "itself".into(),
                Label::Time => "time".into(),
            };
            why += &format!("{name}, before ({by}) ");
        }
        Anomaly {
            kind,
            is_of_time: dependencies.contains(&None),
            why: format!("{}the first", why),
        }
    }
}

/// The edges that are on cycles, or between two.
fn on_cycles(points: usize, mut edges: Vec<Edge>) -> Vec<Edge> {
    for forwards in [true, false] {
        let ends = |edge: &Edge| match forwards {
            true => (edge.from, edge.to),
            false => (edge.to, edge.from),
        };
        let mut incoming = vec![0u32; points];
        let mut out: Vec<Vec<usize>> = vec![Vec::new(); points];
        for edge in &edges {
            let (from, to) = ends(edge);
            incoming[to] += 1;
            out[from].push(to);
        }
        let mut free: Vec<usize> = (0..points).filter(|point| incoming[*point] == 0).collect();
        let mut gone = vec![false; points];
        while let Some(point) = free.pop() {
            gone[point] = true;
            for to in &out[point] {
                incoming[*to] -= 1;
                if incoming[*to] == 0 {
                    free.push(*to);
                }
            }
        }
        edges.retain(|edge| !gone[edge.from] && !gone[edge.to]);
    }
    edges
}

/// The shortest cycle that an edge is on.
fn shortest_cycle(out: &HashMap<usize, Vec<Edge>>, edge: Edge) -> Option<Vec<Edge>> {
    let mut came_by: HashMap<usize, Edge> = HashMap::from([(edge.to, edge)]);
    let mut queue = VecDeque::from([edge.to]);
    while let Some(point) = queue.pop_front() {
        if point == edge.from {
            let mut cycle = vec![came_by[&point]];
            while cycle[cycle.len() - 1].from != edge.from {
                cycle.push(came_by[&cycle[cycle.len() - 1].from]);
            }
            cycle.reverse();
            return Some(cycle);
        }
        for next in out.get(&point).into_iter().flatten() {
            came_by.entry(next.to).or_insert_with(|| {
                queue.push_back(next.to);
                *next
            });
        }
    }
    None
}
