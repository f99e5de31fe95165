//! Every number that goes into the model, with its unit and where it is from.

/// How a parameter's value came about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// A paper states it.
    Stated,
    /// It follows from what papers state, by arithmetic that the source names.
    Derived,
    /// Chosen so that one figure of a paper comes out; the source names it. Then used for all.
    Calibrated,
    /// No paper has it.
    Assumed,
}

impl Origin {
    /// As tables have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stated => "stated",
            Self::Derived => "derived",
            Self::Calibrated => "calibrated",
            Self::Assumed => "assumed",
        }
    }
}

/// A parameter as tables have it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Parameter {
    /// The field of [`Parameters`].
    pub name: &'static str,
    /// In `unit`.
    pub value: f64,
    /// Of the value.
    pub unit: &'static str,
    /// How it came about.
    pub origin: Origin,
    /// Paper and section, or why this value.
    pub source: &'static str,
}

macro_rules! parameters {
    ($($name:ident = $value:expr, $unit:literal, $origin:ident, $source:literal;)*) => {
        /// The model's numbers, each in the unit of the same name in [`Parameters::table`].
        #[derive(Debug, Clone, PartialEq)]
        pub struct Parameters {
            $(#[doc = concat!("In ", $unit, ". ", $source, ".")] pub $name: f64,)*
        }

        impl Default for Parameters {
            fn default() -> Self {
                Self { $($name: $value,)* }
            }
        }

        impl Parameters {
            /// All of them.
            pub fn table(&self) -> Vec<Parameter> {
                vec![$(Parameter {
                    name: stringify!($name),
                    value: self.$name,
                    unit: $unit,
                    origin: Origin::$origin,
                    source: $source,
                },)*]
            }
        }
    };
}

parameters! {
    page = 8192.0, "B", Stated, "BlueDBM 6.5, 7.1: pages and data items of 8 KB";
    burst = 1024.0, "B", Assumed, "what moves as one through bus, link and PCIe: 64 of BlueDBM's bursts of 128 bits (3.1.1), to keep the number of events down";
    cards = 2.0, "", Stated, "BlueDBM 5: two flash boards a node";
    buses = 8.0, "", Stated, "BlueDBM table 1: 8 bus controllers a card";
    chips = 8.0, "", Assumed, "chips a bus; BlueDBM does not say";
    flash_read = 50.0, "µs", Stated, "BlueDBM 3.1.1, 6.3: from command to first data";
    flash_program = 200.0, "µs", Stated, "Minerva table I; BlueDBM does not say";
    flash_erase = 2000.0, "µs", Assumed, "a usual figure of NAND; no seed has one";
    block_pages = 256.0, "", Assumed, "pages that are erased together; no seed has it";
    card_rate = 1.2, "GiB/s", Stated, "BlueDBM 6.5. Its GB are of 2^30 bytes: 320 K pages of 8 KiB a second (7.1) are 2.44 GiB/s of its 2.4, but 2.62 of 10^9";
    card_tags = 128.0, "", Assumed, "requests in flight a card; BlueDBM does not say, its host has 128 buffers";
    card_link_rate = 3.3, "GB/s", Stated, "BlueDBM 5.1: 4-lane aurora between card and host FPGA";
    card_link_delay = 0.5, "µs", Stated, "BlueDBM 5.1";
    lane_rate = 8.2, "Gb/s", Stated, "BlueDBM 6.3: 10 Gb/s less 18 % of protocol";
    hop = 0.48, "µs", Stated, "BlueDBM 6.3, its packet of 128 bits included";
    packet = 16.0, "B", Stated, "BlueDBM 6.3: packets of 128 bits";
    link_buffer = 4096.0, "B", Assumed, "places behind a lane, each with a token; BlueDBM says 'low buffer requirements'";
    to_host_rate = 1.6, "GiB/s", Stated, "BlueDBM 5, 5.3: PCIe Gen 1, device to host memory";
    from_host_rate = 1.0, "GiB/s", Stated, "BlueDBM 5, 5.3: host memory to device";
    host_buffers = 128.0, "", Stated, "BlueDBM 3.3: page buffers, as many again for writes";
    cores = 24.0, "", Stated, "BlueDBM 5";
    dram_rate = 40.0, "GB/s", Assumed, "a two-socket Xeon of 2014; BlueDBM does not say";
    dram_delay = 0.1, "µs", Assumed, "a usual figure";
    software = 60.0, "µs", Calibrated, "what host software adds to a page request that somebody waits for (call, RPC, interrupt, wake-up), on BlueDBM figure 20: 'almost a factor of 3'";
    compare_page = 22.86, "µs", Calibrated, "of one thread, a Hamming distance of 8 KB, on BlueDBM 7.1: 350 K/s by 8 threads";
    scan_byte = 0.826, "ns/B", Calibrated, "of one thread, searching text, on BlueDBM 7.3: 13 % of CPU at disk speed";
    throttle = 600.0, "MiB/s", Stated, "BlueDBM 7.1: its flash slowed down to an off-the-shelf SSD; MB of 2^20 bytes, as its GB";
    ssd_rate = 600.0, "MiB/s", Stated, "BlueDBM 7.1";
    ssd_random = 125.0, "µs", Calibrated, "a random 8 KB page of the SSD, one at a time, on BlueDBM 7.1: DRAM + 10 % flash, '< 80 K'";
    read_ahead = 16.0, "pages", Assumed, "128 KB, Linux' default";
    hdd_rate = 150.0, "MiB/s", Derived, "BlueDBM 7.3: 1.1 GB/s is 7.5 times as fast";
    hdd_random = 12.0, "ms", Assumed, "seek and half a turn of a disk of 7200/min";
    engines_a_bus = 4.0, "", Stated, "BlueDBM 7.3: Morris-Pratt engines, each with one read in flight; they keep up with the bus";
    power_fpga = 30.0, "W", Stated, "BlueDBM table 3: VC707";
    power_flash = 10.0, "W", Stated, "BlueDBM table 3: both flash boards";
    power_server = 200.0, "W", Stated, "BlueDBM table 3: Xeon server";
    bee3_controllers = 4.0, "", Stated, "Minerva III-A, IV-B: memory controllers, each with a storage processor";
    bee3_memory_rate = 5.95, "GB/s", Derived, "Minerva III-D: 23.8 GB/s of local accesses by 4 controllers (more than 4 interfaces of 4 GB/s can carry one access at a time: so each access has one)";
    bee3_interface_rate = 4.0, "GB/s", Stated, "Minerva III-A: local interface, for one access";
    bee3_access = 1.5, "µs", Stated, "Minerva III-D: 4 KB, by the storage processor";
    bee3_write_more = 147.5, "ns", Derived, "Minerva table I: PCM writes in 215 ns, reads in 67.5";
    bee3_in_flight = 2.0, "", Stated, "Minerva III-B: double buffering";
    bee3_slice = 8192.0, "B", Stated, "Minerva III-A: stripes of 8 KB";
    bee3_ring_rate = 4.0, "GB/s", Stated, "Minerva III-A; Willow 3 has 3.7 with its arbitration";
    bee3_ring_trip = 88.0, "ns", Stated, "Minerva III-A: round trip, here of the token before each message (Willow 3)";
    bee3_pcie = 2.0, "GB/s", Stated, "Minerva III-C, Willow 3: PCIe 1.1 x8, each way";
    pcie_read_share = 0.78, "", Stated, "Willow 4.1: of PCIe, by large reads";
    pcie_write_share = 0.73, "", Stated, "Willow 4.1: by large writes";
    moneta_access = 8.33, "µs", Derived, "Minerva III-D: 1.5 µs are 'almost 82 %' less";
    kv_threads = 16.0, "", Stated, "Minerva IV-C, Willow 4.5";
    kv_record = 1020.0, "B", Stated, "Minerva IV-C: keys of 20 bytes and values of 1,000 (Willow 4.5: 16 and 1,024)";
    kv_pointer = 8.0, "B", Assumed, "of a bucket, or of a chain";
    kv_probes = 1.5, "", Assumed, "records looked at to find one, chaining at load factor 1 (Knuth 6.4)";
    kv_software = 16.2, "µs", Calibrated, "of MemcacheDB and Berkeley DB, on Minerva table IV, Get of Moneta-D";
    willow_threads = 16.0, "", Assumed, "of XDD; Willow does not say";
    willow_read = 41.2, "µs", Calibrated, "a small read through Base-IO, on Willow 4.1: 388 K/s";
    willow_os_share = 0.35, "", Stated, "Willow 4.2: of a read's latency, what Direct-IO saves";
    willow_write_trips = 0.5, "", Derived, "Willow 4.2: a write is one RPC round trip, a read two";
}

/// Bytes a second of a rate in GiB/s.
pub(super) const GIB: f64 = (1u64 << 30) as f64;
/// Bytes a second of a rate in GB/s.
pub(super) const GB: f64 = 1e9;
/// Bytes a second of a rate in MiB/s.
pub(super) const MIB: f64 = (1u64 << 20) as f64;
/// Bytes a second of a rate in Gb/s.
pub(super) const GBIT: f64 = 1e9 / 8.0;
/// Seconds of a time in microseconds.
pub(super) const US: f64 = 1e-6;
/// Seconds of a time in nanoseconds.
pub(super) const NS: f64 = 1e-9;
/// Seconds of a time in milliseconds.
pub(super) const MS: f64 = 1e-3;
