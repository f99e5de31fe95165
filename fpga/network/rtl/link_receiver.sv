// The receiving half of a link: takes packets in order into its buffer, and reports.
//
// A frame with bit errors, and a packet that is not the next one, do not get here: frame_decoder
// holds them back. Nothing is lost by that, since link_sender sends again.

`default_nettype none

module link_receiver #(
  parameter int WIDTH = 143,
  parameter int SEQUENCE_BITS = 7,
  parameter int TOKENS = 63         // places in the buffer, as the far link_sender has it
) (
  input  wire  logic               clk,
  input  wire  logic               reset,

  input  wire  logic               s_valid,      // the next packet, free of errors
  input  wire  logic [WIDTH-1:0]   s_packet,
  output logic [SEQUENCE_BITS-1:0] expected,     // the number of the next packet

  output logic                     m_valid,
  input  wire  logic               m_ready,
  output logic [WIDTH-1:0]         m_packet,

  // For the next frame back, which says in turn what was received and what was freed.
  input  wire  logic               report_ready,
  output logic                     report_is_freed,
  output logic [SEQUENCE_BITS-1:0] report,

  output logic                     is_overflow   // a packet came without a place: never
);

  localparam int DEPTH = TOKENS < 2 ? 2 : 1 << $clog2(TOKENS);

  if (2 * TOKENS >= 1 << SEQUENCE_BITS) begin : check_tokens
    $error("link_receiver: SEQUENCE_BITS are too few for TOKENS");
  end

  logic [SEQUENCE_BITS-1:0] freed;
  logic                     has_place;
  logic [$clog2(DEPTH):0]   level;

  packet_fifo #(
    .WIDTH(WIDTH),
    .DEPTH(DEPTH)
  ) buffer (
    .clk,
    .reset,
    .s_valid,
    .s_ready(has_place),
    .s_data(s_packet),
    .m_valid,
    .m_ready,
    .m_data(m_packet),
    .level
  );

  assign is_overflow = s_valid && (!has_place || level >= ($clog2(DEPTH) + 1)'(TOKENS));
  assign report = report_is_freed ? freed : expected;

  always_ff @(posedge clk) begin
    if (s_valid) expected <= expected + 1'b1;
    if (m_valid && m_ready) freed <= freed + 1'b1;
    if (report_ready) report_is_freed <= !report_is_freed;
    if (reset) begin
      expected <= '0;
      freed <= '0;
      report_is_freed <= 1'b0;
    end
  end

endmodule

`default_nettype wire
