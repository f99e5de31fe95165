// A link over lines that lose any frame at any time: tokens are conserved, nothing overflows, the
// n-th packet out is the n-th packet in, and packets move on when lines stop losing frames.
//
// Sender and receiver do not look into packets, so a packet here is its own number. A frame with
// bit errors is a lost one: frame_decoder holds it back (bench/frame). The lines keep frames in
// order; register stages stand for their latency. Names with a dot in `probe` comments are
// registers of the design.

`default_nettype none

module proof #(
  parameter int SEQUENCE_BITS = 3,
  parameter int TOKENS = 3,
  parameter int TIMEOUT = 4,
  parameter int STAGES = 2,             // of each line
  parameter int CLOCKS = 0,             // `progress` holds after so many; 0: only safety
  parameter int SLOTS = TOKENS == 1 ? 2 : 1 << $clog2(TOKENS),
  parameter int DEPTH = TOKENS < 2 ? 2 : 1 << $clog2(TOKENS)
) (
  input wire logic clk,
  input wire logic s_valid,
  input wire logic m_ready,
  input wire logic out_ready,           // the line takes a frame
  input wire logic back_ready,
  input wire logic out_lost,            // and loses it
  input wire logic back_lost
);

  localparam int NUMBER_BITS = SEQUENCE_BITS + 2;
  typedef logic [SEQUENCE_BITS-1:0] sequence_t;
  typedef logic [NUMBER_BITS-1:0]   number_t;

  // Reset in the first clock; `progress` starts in any state.
  logic started = CLOCKS != 0;
  always_ff @(posedge clk) started <= 1'b1;
  wire reset = !started;

  // What went in and came out so far.
  number_t in_count;
  number_t out_count;

  logic      s_ready;
  logic      send_valid;
  number_t   send_packet;
  sequence_t send_sequence;
  logic      m_valid;
  number_t   m_packet;
  sequence_t expected;
  logic      report_is_freed;
  sequence_t report;
  logic      is_overflow;

  // Stage 0 is the nearest to where frames come from.
  logic [STAGES-1:0] out_valid;
  sequence_t         out_sequence [STAGES];
  number_t           out_packet [STAGES];
  logic [STAGES-1:0] back_valid;
  logic [STAGES-1:0] back_is_freed;
  sequence_t         back_report [STAGES];

  wire is_next = out_valid[STAGES-1] && out_sequence[STAGES-1] == expected;

  link_sender #(
    .WIDTH(NUMBER_BITS), .SEQUENCE_BITS(SEQUENCE_BITS), .TOKENS(TOKENS), .TIMEOUT(TIMEOUT)
  ) sender (
    .clk, .reset, .s_valid, .s_ready, .s_packet(in_count),
    .m_valid(send_valid), .m_ready(out_ready), .m_packet(send_packet), .m_sequence(send_sequence),
    .report_valid(back_valid[STAGES-1]), .report_is_freed(back_is_freed[STAGES-1]),
    .report(back_report[STAGES-1]), .is_repeating()
  );

  link_receiver #(
    .WIDTH(NUMBER_BITS), .SEQUENCE_BITS(SEQUENCE_BITS), .TOKENS(TOKENS)
  ) receiver (
    .clk, .reset, .s_valid(is_next), .s_packet(out_packet[STAGES-1]), .expected,
    .m_valid, .m_ready, .m_packet, .report_ready(back_ready), .report_is_freed, .report,
    .is_overflow
  );

  always_ff @(posedge clk) begin
    out_valid[0] <= send_valid && out_ready && !out_lost;
    out_sequence[0] <= send_sequence;
    out_packet[0] <= send_packet;
    back_valid[0] <= back_ready && !back_lost;
    back_is_freed[0] <= report_is_freed;
    back_report[0] <= report;
    for (int i = 1; i < STAGES; i++) begin
      out_valid[i] <= out_valid[i-1];
      out_sequence[i] <= out_sequence[i-1];
      out_packet[i] <= out_packet[i-1];
      back_valid[i] <= back_valid[i-1];
      back_is_freed[i] <= back_is_freed[i-1];
      back_report[i] <= back_report[i-1];
    end
    in_count <= in_count + number_t'(s_valid && s_ready);
    out_count <= out_count + number_t'(m_valid && m_ready);
    if (reset) begin
      out_valid <= '0;
      back_valid <= '0;
      in_count <= '0;
      out_count <= '0;
    end
  end

  // Registers of the design.
  wire sequence_t tokens;               // probe sender.tokens
  wire sequence_t taken;                // probe sender.taken
  wire sequence_t next;                 // probe sender.next
  wire sequence_t received;             // probe sender.received
  wire sequence_t freed;                // probe sender.freed
  wire [$clog2(TIMEOUT):0] waited;      // probe sender.waited
  wire [SLOTS*NUMBER_BITS-1:0] kept;    // probe sender.kept[*]
  wire sequence_t far_freed;            // probe receiver.freed
  wire [$clog2(DEPTH):0] level;         // probe receiver.level
  wire [$clog2(DEPTH):0] buffer_taken;  // probe receiver.buffer.taken
  wire [DEPTH*NUMBER_BITS-1:0] buffer;  // probe receiver.buffer.memory[*]

  // As distances from what the sender knows to be freed, modulo 2^SEQUENCE_BITS.
  wire sequence_t to_received = received - freed;
  wire sequence_t to_next = next - freed;
  wire sequence_t to_taken = taken - freed;
  wire sequence_t to_far_freed = far_freed - freed;
  wire sequence_t to_expected = expected - freed;
  // The number of the packet that the receiver wants.
  wire number_t   wanted = in_count - number_t'(sequence_t'(taken - expected));

  logic holds;        // every invariant
  logic is_kept;      // what is not known to be received is kept, in the right slots
  logic is_buffered;  // the buffer holds the packets from out_count on
  logic is_wired;     // frames under way are what they should be
  logic is_reported;  // reports under way do not go back

  always_comb begin
    is_kept = 1'b1;
    for (int i = 0; i < TOKENS; i++) begin
      if (i < sequence_t'(taken - received)) begin
        if (kept[NUMBER_BITS * ((received + i) % SLOTS) +: NUMBER_BITS] !=
            number_t'(in_count - sequence_t'(taken - received) + i)) is_kept = 1'b0;
      end
    end

    is_buffered = 1'b1;
    for (int i = 0; i < DEPTH; i++) begin
      if (i < level) begin
        if (buffer[NUMBER_BITS * ((buffer_taken + i) % DEPTH) +: NUMBER_BITS] !=
            number_t'(out_count + i)) is_buffered = 1'b0;
      end
    end

    is_wired = 1'b1;
    for (int i = 0; i < STAGES; i++) begin
      if (out_valid[i]) begin
        if (out_sequence[i] != sequence_t'(out_packet[i])) is_wired = 1'b0;
        // It was taken in before, and is not too old to be told from a new one on arrival,
        // neither now nor after what is before it.
        if (number_t'(in_count - 1 - out_packet[i]) >= 3 * TOKENS) is_wired = 1'b0;
        if (number_t'(wanted - out_packet[i] + TOKENS - 1) > 2 * TOKENS - 1) is_wired = 1'b0;
        for (int j = i + 1; j < STAGES; j++) begin
          if (out_valid[j] &&
              number_t'(out_packet[j] - out_packet[i] + 2 * TOKENS - 1) > 3 * TOKENS - 2)
            is_wired = 1'b0;
        end
      end
    end

    is_reported = 1'b1;
    for (int i = 0; i < STAGES; i++) begin
      if (back_valid[i]) begin
        if (back_is_freed[i]) begin
          if (sequence_t'(back_report[i] - freed) > to_far_freed) is_reported = 1'b0;
        end else begin
          if (sequence_t'(back_report[i] - freed) > to_expected) is_reported = 1'b0;
          if (sequence_t'(back_report[i] - freed) < to_received) is_reported = 1'b0;
        end
        // Stage j is older.
        for (int j = i + 1; j < STAGES; j++) begin
          if (back_valid[j] && (back_is_freed[j] || !back_is_freed[i]) &&
              sequence_t'(back_report[j] - freed) > sequence_t'(back_report[i] - freed))
            is_reported = 1'b0;
        end
      end
    end

    holds = to_received <= to_next && to_next <= to_taken && to_received <= to_expected &&
            to_far_freed <= to_expected && to_expected <= to_taken && to_taken <= TOKENS &&
            level == to_expected - to_far_freed && level <= TOKENS &&
            sequence_t'(in_count) == taken && sequence_t'(out_count) == far_freed &&
            number_t'(in_count - out_count) == sequence_t'(taken - far_freed) &&
            sequence_t'(buffer_taken) % DEPTH == far_freed % DEPTH &&
            waited <= TIMEOUT &&
            is_kept && is_buffered && is_wired && is_reported;
  end

  // Places that are free, spoken for by packets under way, full, and free again but not known.
  wire [SEQUENCE_BITS+1:0] places =
    tokens + sequence_t'(taken - expected) + level + sequence_t'(far_freed - freed);

  if (CLOCKS == 0) begin : safety
    always_comb begin
      if (started) begin
        a_conserved: assert (places == TOKENS);
        a_no_overflow: assert (!is_overflow);
        // Neither lost nor doubled nor out of order.
        if (m_valid) a_order: assert (m_packet == out_count);
        a_invariant: assert (holds);
      end
    end
  end else begin : progress
    // From any state that safety allows, lines that lose nothing, and a receiver that drains: in
    // CLOCKS clocks a packet comes out.
    logic [7:0] age = '0;
    number_t    goal;
    always_ff @(posedge clk) begin
      if (age == '0) goal <= out_count;
      if (age != '1) age <= age + 1'b1;
    end
    always_comb begin
      assume (started && out_ready && back_ready && !out_lost && !back_lost && m_ready && s_valid);
      if (age == '0) assume (places == TOKENS && holds);
      if (age == CLOCKS) a_progress: assert (out_count != goal);
    end
  end

endmodule

`default_nettype wire
