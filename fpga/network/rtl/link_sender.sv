// The sending half of a link: tokens, and the packets that may have to be sent again.
//
// BlueDBM, section 3.2.2: token-based flow control gives back pressure across a link, so packets
// do not drop. A token stands for a place in the far buffer. It is spent when a packet is taken
// in here and comes back when the packet leaves the far buffer.
//
// The paper does not say what becomes of bit errors. Here a packet is kept until the far end
// reports that it has it. When no report moves on for TIMEOUT clocks, all that is not reported is
// sent again, in order (go back N). Reports are totals modulo 2^SEQUENCE_BITS, so a lost one is
// made good by the next.

`default_nettype none

module link_sender #(
  parameter int WIDTH = 143,
  parameter int SEQUENCE_BITS = 7,
  parameter int TOKENS = 63,        // places in the far buffer
  parameter int TIMEOUT = 512       // clocks; more than a packet out and its report back take
) (
  input  wire  logic                     clk,
  input  wire  logic                     reset,

  input  wire  logic                     s_valid,
  output logic                           s_ready,
  input  wire  logic [WIDTH-1:0]         s_packet,

  // A packet for the next frame, and its number, which the frame's check covers.
  output logic                           m_valid,
  input  wire  logic                     m_ready,
  output logic [WIDTH-1:0]               m_packet,
  output logic [SEQUENCE_BITS-1:0]       m_sequence,

  // Reports of the far end: packets received in order so far, or freed so far.
  input  wire  logic                     report_valid,
  input  wire  logic                     report_is_freed,
  input  wire  logic [SEQUENCE_BITS-1:0] report,

  output logic                           is_repeating    // a timeout, for one clock
);

  // Distances of -TOKENS to TOKENS must differ modulo 2^SEQUENCE_BITS.
  if (TOKENS < 1 || 2 * TOKENS >= 1 << SEQUENCE_BITS) begin : check_tokens
    $error("link_sender: SEQUENCE_BITS are too few for TOKENS");
  end
  if (TIMEOUT < 2) begin : check_timeout
    $error("link_sender: TIMEOUT is less than 2");
  end

  localparam int SLOT_BITS = TOKENS == 1 ? 1 : $clog2(TOKENS);

  typedef logic [SEQUENCE_BITS-1:0] number_t;

  logic [WIDTH-1:0]         kept [1 << SLOT_BITS];
  number_t                  tokens;
  number_t                  taken;      // packets taken in
  number_t                  next;       // the packet to send next
  number_t                  received;   // packets that the far end has, as reported
  number_t                  freed;      // packets that have left the far buffer, as reported
  logic [$clog2(TIMEOUT):0] waited;

  logic    take;
  logic    send;
  number_t next_received;
  number_t next_freed;
  number_t sent;
  number_t ahead;     // how far a report is ahead of `received`
  logic    is_ahead;

  assign s_ready = tokens != '0;
  assign take = s_valid && s_ready;
  assign m_valid = next != taken;
  assign send = m_valid && m_ready;
  assign m_packet = kept[next[SLOT_BITS-1:0]];
  assign m_sequence = next;
  assign sent = next + number_t'(send);

  // What was freed was received. A report of freed packets may be behind `received`.
  assign ahead = report - received;
  assign is_ahead = report_valid && ahead != '0 && ahead <= number_t'(TOKENS);
  assign next_received = is_ahead ? report : received;
  assign next_freed = report_valid && report_is_freed ? report : freed;

  assign is_repeating = waited == ($clog2(TIMEOUT) + 1)'(TIMEOUT);

  always_ff @(posedge clk) begin
    if (take) begin
      kept[taken[SLOT_BITS-1:0]] <= s_packet;
      taken <= taken + 1'b1;
    end
    received <= next_received;
    freed <= next_freed;
    tokens <= tokens - number_t'(take) + (next_freed - freed);

    if (is_repeating) next <= next_received;
    // A report from before the timeout may already be past what is sent again.
    else if (number_t'(next_received - received) > number_t'(sent - received))
      next <= next_received;
    else next <= sent;

    if (is_ahead || next == received || is_repeating) waited <= '0;
    else waited <= waited + 1'b1;

    if (reset) begin
      tokens <= number_t'(TOKENS);
      taken <= '0;
      next <= '0;
      received <= '0;
      freed <= '0;
      waited <= '0;
    end
  end

endmodule

`default_nettype wire
