//! The simulation: jobs that go through stations, take tokens and wait for each other.
//!
//! Every part of the appliance is made of these: a flash bus, a link's lane, PCIe or a core is a
//! [`Station`]; a tag, a page buffer or a link's token is of a pool; a page is a job, its bursts
//! are the jobs into which it forks.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use super::clock::{EventQueue, Time};

/// A station of a [`Simulation`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct StationId(usize);

/// Tokens of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PoolId(usize);

/// An order in which jobs leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct OrderId(usize);

/// The steps of a job, one after the other.
pub type Path = Rc<[Step]>;

/// A step of a job.
#[derive(Debug, Clone)]
pub enum Step {
    /// Waits for a server of the station, first come, first served, and keeps it for so long.
    Serve(StationId, Time),
    /// Takes so long and nothing else.
    Delay(Time),
    /// Waits for a token, first come, first served.
    Take(PoolId),
    /// Gives a token back, which is there after so long; goes on at once.
    Give(PoolId, Time),
    /// Starts so many jobs of each path at once, and goes on when all of them have ended.
    Fork(Rc<[(u32, Path)]>),
    /// Draws the next number of an order.
    Ticket(OrderId),
    /// Goes on after all jobs with a lower number have come here.
    Turn(OrderId),
}

#[derive(Debug)]
struct Job {
    path: Path,
    at: usize,
    /// Of the job that is told of as done.
    tag: u64,
    parent: Option<usize>,
    /// Of a fork, those that have not ended.
    children: u32,
    ticket: u64,
}

/// Servers with one queue.
#[derive(Debug)]
pub struct Station {
    name: &'static str,
    node: usize,
    servers: u32,
    busy: u32,
    waiting: VecDeque<(usize, Time)>,
    busy_time: Time,
    served: u64,
}

impl Station {
    /// What kind of part it is.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The node that it is of.
    pub fn node(&self) -> usize {
        self.node
    }

    /// How many were served.
    pub fn served(&self) -> u64 {
        self.served
    }

    /// The share of the servers' time that they were busy, of so long from the beginning.
    pub fn used(&self, of: Time) -> f64 {
        let all = of.seconds() * f64::from(self.servers);
        if all > 0.0 {
            self.busy_time.seconds() / all
        } else {
            0.0
        }
    }
}

#[derive(Debug)]
struct Pool {
    free: u64,
    waiting: VecDeque<usize>,
}

#[derive(Debug, Default)]
struct Order {
    drawn: u64,
    next: u64,
    waiting: BTreeMap<u64, usize>,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A job begins with the step that it is at.
    Begin(usize),
    /// The step that a job is at has ended.
    End(usize),
    /// A token is back.
    Back(usize),
}

/// Stations, pools and the jobs between them. Deterministic: the same calls give the same times.
#[derive(Debug)]
pub struct Simulation {
    now: Time,
    events: EventQueue<Event>,
    jobs: Vec<Job>,
    free_jobs: Vec<usize>,
    stations: Vec<Station>,
    pools: Vec<Pool>,
    orders: Vec<Order>,
    running: u64,
}

impl Default for Simulation {
    fn default() -> Self {
        Self::new()
    }
}

impl Simulation {
    /// Nothing, at time zero.
    pub fn new() -> Self {
        Self {
            now: Time::ZERO,
            events: EventQueue::new(),
            jobs: Vec::new(),
            free_jobs: Vec::new(),
            stations: Vec::new(),
            pools: Vec::new(),
            orders: Vec::new(),
            running: 0,
        }
    }

    /// The present time.
    pub fn now(&self) -> Time {
        self.now
    }

    /// Jobs that were started and have not ended, without those of forks. Not zero after
    /// [`run`](Self::run) where jobs wait for tokens that nobody gives back.
    pub fn running(&self) -> u64 {
        self.running
    }

    /// A station with so many servers, of a node.
    pub fn station(&mut self, name: &'static str, node: usize, servers: u32) -> StationId {
        self.stations.push(Station {
            name,
            node,
            servers,
            busy: 0,
            waiting: VecDeque::new(),
            busy_time: Time::ZERO,
            served: 0,
        });
        StationId(self.stations.len() - 1)
    }

    /// So many tokens.
    pub fn pool(&mut self, tokens: u64) -> PoolId {
        let waiting = VecDeque::new();
        let free = tokens;
        self.pools.push(Pool { free, waiting });
        PoolId(self.pools.len() - 1)
    }

    /// An order that begins with the first [`Step::Ticket`].
    pub fn order(&mut self) -> OrderId {
        self.orders.push(Order::default());
        OrderId(self.orders.len() - 1)
    }

    /// All stations.
    pub fn stations(&self) -> &[Station] {
        &self.stations
    }

    /// One of them.
    pub fn at(&self, station: StationId) -> &Station {
        &self.stations[station.0]
    }

    /// Tokens that nobody has.
    pub fn free(&self, pool: PoolId) -> u64 {
        self.pools[pool.0].free
    }

    /// Starts a job, now.
    pub fn start(&mut self, path: impl Into<Path>, tag: u64) {
        self.start_after(Time::ZERO, path, tag);
    }

    /// Starts a job after so long.
    pub fn start_after(&mut self, wait: Time, path: impl Into<Path>, tag: u64) {
        self.running += 1;
        let job = self.put_job(path.into(), tag, None);
        self.events.push(self.now + wait, Event::Begin(job));
    }

    /// Runs until nothing is to happen any more. Each job that ends is told of, by its tag, and may
    /// be followed by others.
    pub fn run(&mut self, mut ended: impl FnMut(&mut Self, u64)) {
        while let Some((at, event)) = self.events.pop() {
            self.now = at;
            let job = match event {
                Event::Begin(job) => job,
                Event::End(job) => {
                    if let Step::Serve(station, _) = self.jobs[job].path[self.jobs[job].at] {
                        self.release(station);
                    }
                    self.jobs[job].at += 1;
                    job
                }
                Event::Back(pool) => {
                    self.give(pool);
                    continue;
                }
            };
            if let Some(tag) = self.go_on(job) {
                self.running -= 1;
                ended(self, tag);
            }
        }
    }

    fn put_job(&mut self, path: Path, tag: u64, parent: Option<usize>) -> usize {
        let job = Job {
            path,
            at: 0,
            tag,
            parent,
            children: 0,
            ticket: 0,
        };
        if let Some(place) = self.free_jobs.pop() {
            self.jobs[place] = job;
            return place;
        }
        self.jobs.push(job);
        self.jobs.len() - 1
    }

    /// From the step that the job is at up to one that takes time; the tag if that was the last.
    fn go_on(&mut self, job: usize) -> Option<u64> {
        loop {
            let Some(step) = self.jobs[job].path.get(self.jobs[job].at).cloned() else {
                return self.end(job);
            };
            match step {
                Step::Serve(station, time) => {
                    self.serve(station, job, time);
                    return None;
                }
                Step::Delay(time) => {
                    self.events.push(self.now + time, Event::End(job));
                    return None;
                }
                Step::Take(pool) => {
                    let pool = &mut self.pools[pool.0];
                    if pool.free == 0 {
                        pool.waiting.push_back(job);
                        return None;
                    }
                    pool.free -= 1;
                }
                Step::Give(pool, Time::ZERO) => self.give(pool.0),
                Step::Give(pool, after) => self.events.push(self.now + after, Event::Back(pool.0)),
                Step::Fork(paths) => {
                    let children: u32 = paths.iter().map(|(count, _)| count).sum();
                    self.jobs[job].children = children;
                    for (count, path) in paths.iter() {
                        for _ in 0..*count {
                            let child = self.put_job(path.clone(), 0, Some(job));
                            self.events.push(self.now, Event::Begin(child));
                        }
                    }
                    if children > 0 {
                        return None;
                    }
                }
                Step::Ticket(order) => {
                    let order = &mut self.orders[order.0];
                    self.jobs[job].ticket = order.drawn;
                    order.drawn += 1;
                }
                Step::Turn(order) => {
                    let order = &mut self.orders[order.0];
                    let ticket = self.jobs[job].ticket;
                    if ticket != order.next {
                        order.waiting.insert(ticket, job);
                        return None;
                    }
                    order.next += 1;
                    if let Some(next) = order.waiting.remove(&order.next) {
                        // It comes here once more, as the next one.
                        self.events.push(self.now, Event::Begin(next));
                    }
                }
            }
            self.jobs[job].at += 1;
        }
    }

    fn end(&mut self, job: usize) -> Option<u64> {
        self.free_jobs.push(job);
        let Some(parent) = self.jobs[job].parent else {
            return Some(self.jobs[job].tag);
        };
        self.jobs[parent].children -= 1;
        if self.jobs[parent].children == 0 {
            self.events.push(self.now, Event::End(parent));
        }
        None
    }

    fn serve(&mut self, station: StationId, job: usize, time: Time) {
        let station = &mut self.stations[station.0];
        if station.busy == station.servers {
            station.waiting.push_back((job, time));
            return;
        }
        station.busy += 1;
        station.busy_time += time;
        self.events.push(self.now + time, Event::End(job));
    }

    fn release(&mut self, station: StationId) {
        let station = &mut self.stations[station.0];
        station.served += 1;
        match station.waiting.pop_front() {
            Some((job, time)) => {
                station.busy_time += time;
                self.events.push(self.now + time, Event::End(job));
            }
            None => station.busy -= 1,
        }
    }

    fn give(&mut self, pool: usize) {
        match self.pools[pool].waiting.pop_front() {
            Some(job) => self.events.push(self.now, Event::End(job)),
            None => self.pools[pool].free += 1,
        }
    }
}
