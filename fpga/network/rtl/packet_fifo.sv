// First in, first out; the first word shows before it is taken.
//
// Memory is read in the clock in which it is addressed: distributed RAM, or block RAM where a tool
// can move the register of the address into it.

`default_nettype none

module packet_fifo #(
  parameter int WIDTH = 143,
  parameter int DEPTH = 64            // words; a power of two
) (
  input  wire  logic             clk,
  input  wire  logic             reset,

  input  wire  logic             s_valid,
  output logic                   s_ready,
  input  wire  logic [WIDTH-1:0] s_data,

  output logic                   m_valid,
  input  wire  logic             m_ready,
  output logic [WIDTH-1:0]       m_data,

  output logic [$clog2(DEPTH):0] level   // words in it
);

  if (DEPTH < 2 || (DEPTH & (DEPTH - 1)) != 0) begin : check_depth
    $error("packet_fifo: DEPTH is not a power of two of at least 2");
  end

  localparam int INDEX_BITS = $clog2(DEPTH);

  logic [WIDTH-1:0]    memory [DEPTH];
  // One bit more than an index: a full FIFO is not an empty one.
  logic [INDEX_BITS:0] written;
  logic [INDEX_BITS:0] taken;

  assign level = written - taken;
  assign s_ready = level != (INDEX_BITS + 1)'(DEPTH);
  assign m_valid = level != '0;
  assign m_data = memory[taken[INDEX_BITS-1:0]];

  always_ff @(posedge clk) begin
    if (s_valid && s_ready) begin
      memory[written[INDEX_BITS-1:0]] <= s_data;
      written <= written + 1'b1;
    end
    if (m_valid && m_ready) taken <= taken + 1'b1;
    if (reset) begin
      written <= '0;
      taken <= '0;
    end
  end

endmodule

`default_nettype wire
