// An HLS kernel in C simulation, with the ports of its streaming form: packets in and out as
// AXI-Stream beats. Its C++ runs in the simulator's process, reached through DPI (slot.cpp).
//
// At each edge the kernel is given what was handed over in the clock that ends, runs until none of
// its stages can move, and shows what it offers and takes in the next: so full FIFOs hold up what
// is around them, and the same run gives the same clocks. It takes no clocks of its own: what it
// would take on a device nothing here knows. Its memory ports are arrays of the process.

`default_nettype none

module hls_kernel #(
  parameter int SLOT = 0                              // which one it is to slot.cpp
) (
  input  wire  logic                                  clk,
  input  wire  logic                                  is_paused,  // it takes and offers nothing

  input  wire  logic                                  start_valid,
  output logic                                        start_ready,
  input  wire  logic [shell_pkg::PARAMETER_BITS-1:0]  start_parameter,  // where its arguments are
  input  wire  logic [shell_pkg::OFFSET_BITS-1:0]     start_packets,
  output logic                                        ended_valid,
  input  wire  logic                                  ended_ready,

  input  wire  logic                                  s_valid,
  output logic                                        s_ready,
  input  wire  logic [shell_pkg::BEAT_BITS-1:0]       s_data,
  input  wire  logic [shell_pkg::BEAT_BYTES-1:0]      s_keep,
  input  wire  logic [shell_pkg::KERNEL_TAG_BITS-1:0] s_tag,
  input  wire  logic                                  s_is_last,

  output logic                                        m_valid,
  input  wire  logic                                  m_ready,
  output logic [shell_pkg::BEAT_BITS-1:0]             m_data,
  output logic [shell_pkg::BEAT_BYTES-1:0]            m_keep,
  output logic [shell_pkg::KERNEL_TAG_BITS-1:0]       m_tag,
  output logic                                        m_is_last,

  output logic                                        is_at_work
);

  // A part starts, and packets of so many pages will come.
  import "DPI-C" function void kernel_start(input int slot, input longint unsigned parameter_word,
                                            input int unsigned packets);
  // A beat has come.
  import "DPI-C" function void kernel_put(input int slot, input bit [511:0] data,
                                          input bit [63:0] keep, input bit [31:0] tag,
                                          input bit is_last);
  // The beat that was shown was taken.
  import "DPI-C" function void kernel_take(input int slot);
  // That it had ended was seen.
  import "DPI-C" function void kernel_end(input int slot);
  // Runs it until it can't move, and says what it offers and takes then.
  import "DPI-C" function void kernel_show(input int slot, output bit is_running,
                                           output bit can_take, output bit has_beat,
                                           output bit [511:0] data, output bit [63:0] keep,
                                           output bit [31:0] tag, output bit is_last,
                                           output bit has_ended);

  if (shell_pkg::BEAT_BITS != 512 || shell_pkg::KERNEL_TAG_BITS != 32) begin : check_beats
    $error("hls_kernel: C simulation has beats of 512 bits and tags of 32");
  end

  bit can_take;
  bit has_beat;
  bit has_ended;

  assign start_ready = !is_at_work && !is_paused;
  assign s_ready = can_take && !is_paused;
  assign m_valid = has_beat && !is_paused;
  assign ended_valid = has_ended && !is_paused;

  bit         next_is_running;
  bit         next_can_take;
  bit         next_has_beat;
  bit [511:0] next_data;
  bit [63:0]  next_keep;
  bit [31:0]  next_tag;
  bit         next_is_last;
  bit         next_has_ended;

  always @(posedge clk) begin
    if (start_valid && start_ready) kernel_start(SLOT, start_parameter, 32'(start_packets));
    if (s_valid && s_ready) kernel_put(SLOT, s_data, s_keep, s_tag, s_is_last);
    if (m_valid && m_ready) kernel_take(SLOT);
    if (ended_valid && ended_ready) kernel_end(SLOT);
    kernel_show(SLOT, next_is_running, next_can_take, next_has_beat, next_data, next_keep,
                next_tag, next_is_last, next_has_ended);
    is_at_work <= next_is_running;
    can_take <= next_can_take;
    has_beat <= next_has_beat;
    m_data <= next_data;
    m_keep <= next_keep;
    m_tag <= next_tag;
    m_is_last <= next_is_last;
    has_ended <= next_has_ended;
  end

endmodule

`default_nettype wire
