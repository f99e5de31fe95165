// A vector of FIFOs in one memory with two ports, which gives bursts.
//
// BlueDBM, section 3.3: pages of several requests arrive interleaved, but a DMA burst wants
// contiguous data of one; so each request has a FIFO of its own, and when that has enough for a
// burst, the burst goes. Words of a FIFO stay in order, words of a burst together. A FIFO takes a
// multiple of BURST words in all, or the rest of them stays.

`default_nettype none

module fifo_vector #(
  parameter int FIFOS = 64,          // a power of two
  parameter int DEPTH = 512,         // words of each; a power of two
  parameter int BURST = 16,          // words; a power of two
  parameter int WIDTH = 128,
  parameter int INDEX_BITS = $clog2(FIFOS)
) (
  input  wire  logic                  clk,
  input  wire  logic                  reset,

  input  wire  logic                  s_valid,
  output logic                        s_ready,     // for s_index
  input  wire  logic [INDEX_BITS-1:0] s_index,
  input  wire  logic [WIDTH-1:0]      s_data,

  output logic                        m_valid,
  input  wire  logic                  m_ready,
  output logic [INDEX_BITS-1:0]       m_index,
  output logic [WIDTH-1:0]            m_data,
  output logic                        m_is_last    // of a burst
);

  localparam int DEPTH_BITS = $clog2(DEPTH);
  localparam int BURST_BITS = $clog2(BURST);

  if (FIFOS < 2 || (FIFOS & (FIFOS - 1)) != 0) begin : check_fifos
    $error("fifo_vector: FIFOS is not a power of two of at least 2");
  end
  if (BURST < 2 || (BURST & (BURST - 1)) != 0 || (DEPTH & (DEPTH - 1)) != 0 || DEPTH < 2 * BURST)
  begin : check_depth
    $error("fifo_vector: DEPTH and BURST are not powers of two, DEPTH at least two bursts");
  end

  // One bit more than an index: a full FIFO is not an empty one.
  typedef logic [DEPTH_BITS:0] count_t;

  logic [WIDTH-1:0]      memory [FIFOS << DEPTH_BITS];
  count_t                written [FIFOS];
  count_t                taken [FIFOS];

  count_t                at;          // where the next word of s_index goes
  count_t                next;
  count_t                from;        // where the next word of the burst is
  logic                  put;
  logic                  is_burst;    // another burst is complete
  logic                  has_burst;
  logic [INDEX_BITS-1:0] index;       // of the burst
  logic [BURST_BITS-1:0] position;    // in it
  logic                  go;
  logic                  get;
  logic                  is_last;

  // The FIFOs that have a burst, once for each. There are no more bursts than places.
  packet_fifo #(
    .WIDTH(INDEX_BITS),
    .DEPTH(FIFOS * DEPTH / BURST)
  ) bursts (
    .clk,
    .reset,
    .s_valid(is_burst),
    .s_ready(),
    .s_data(s_index),
    .m_valid(has_burst),
    .m_ready(get && is_last),
    .m_data(index),
    .level()
  );

  assign at = written[s_index];
  assign next = at + 1'b1;
  assign s_ready = count_t'(at - taken[s_index]) != count_t'(DEPTH);
  assign put = s_valid && s_ready;
  assign is_burst = put && next[BURST_BITS-1:0] == '0;

  assign from = taken[index];
  assign go = !m_valid || m_ready;
  assign get = go && has_burst;
  assign is_last = position == '1;

  always_ff @(posedge clk) begin
    if (put) begin
      memory[{s_index, at[DEPTH_BITS-1:0]}] <= s_data;
      written[s_index] <= next;
    end
    if (go) begin
      m_valid <= has_burst;
      m_index <= index;
      m_data <= memory[{index, from[DEPTH_BITS-1:0]}];
      m_is_last <= is_last;
    end
    if (get) begin
      taken[index] <= from + 1'b1;
      position <= position + 1'b1;
    end
    if (reset) begin
      for (int i = 0; i < FIFOS; i++) begin
        written[i] <= '0;
        taken[i] <= '0;
      end
      position <= '0;
      m_valid <= 1'b0;
    end
  end

endmodule

`default_nettype wire
