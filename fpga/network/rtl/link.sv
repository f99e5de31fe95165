// A port of a node: packets to and from the node at the other end of a cable.
//
// Serial transceiver, line code and the marking of frames are outside (`line_*`): the paper has
// them from Aurora, an IP core of the vendor. Both ends of a cable are reset together.

`default_nettype none

module link #(
  parameter int TOKENS = 63,
  parameter int TIMEOUT = 512
) (
  input  wire  logic                 clk,
  input  wire  logic                 reset,

  input  wire  logic                 s_valid,
  output logic                       s_ready,
  input  wire  network_pkg::packet_t s_packet,

  output logic                       m_valid,
  input  wire  logic                 m_ready,
  output network_pkg::packet_t       m_packet,

  output logic                       line_out_valid,
  input  wire  logic                 line_out_ready,
  output network_pkg::frame_t        line_out_frame,

  input  wire  logic                 line_in_valid,
  input  wire  network_pkg::frame_t  line_in_frame,

  // For counters of software, each for one clock.
  output logic                       is_repeating,
  output logic                       is_refused,
  output logic                       is_overflow
);

  localparam int SEQUENCE_BITS = network_pkg::SEQUENCE_BITS;

  logic                     send_valid;
  logic                     send_ready;
  network_pkg::packet_t     send_packet;
  logic [SEQUENCE_BITS-1:0] send_sequence;

  logic                     received_valid;
  network_pkg::packet_t     received_packet;
  logic [SEQUENCE_BITS-1:0] expected;

  logic                     ours_ready;
  logic                     ours_is_freed;
  logic [SEQUENCE_BITS-1:0] ours;
  logic                     theirs_valid;
  logic                     theirs_is_freed;
  logic [SEQUENCE_BITS-1:0] theirs;

  link_sender #(
    .WIDTH(network_pkg::PACKET_BITS),
    .SEQUENCE_BITS(SEQUENCE_BITS),
    .TOKENS(TOKENS),
    .TIMEOUT(TIMEOUT)
  ) sender (
    .clk,
    .reset,
    .s_valid,
    .s_ready,
    .s_packet,
    .m_valid(send_valid),
    .m_ready(send_ready),
    .m_packet(send_packet),
    .m_sequence(send_sequence),
    .report_valid(theirs_valid),
    .report_is_freed(theirs_is_freed),
    .report(theirs),
    .is_repeating
  );

  frame_encoder encoder (
    .clk,
    .reset,
    .s_valid(send_valid),
    .s_ready(send_ready),
    .s_packet(send_packet),
    .s_sequence(send_sequence),
    .report_is_freed(ours_is_freed),
    .report(ours),
    .report_ready(ours_ready),
    .line_valid(line_out_valid),
    .line_ready(line_out_ready),
    .line_frame(line_out_frame)
  );

  frame_decoder decoder (
    .clk,
    .reset,
    .line_valid(line_in_valid),
    .line_frame(line_in_frame),
    .expected,
    .m_valid(received_valid),
    .m_packet(received_packet),
    .report_valid(theirs_valid),
    .report_is_freed(theirs_is_freed),
    .report(theirs),
    .is_refused
  );

  link_receiver #(
    .WIDTH(network_pkg::PACKET_BITS),
    .SEQUENCE_BITS(SEQUENCE_BITS),
    .TOKENS(TOKENS)
  ) receiver (
    .clk,
    .reset,
    .s_valid(received_valid),
    .s_packet(received_packet),
    .expected,
    .m_valid,
    .m_ready,
    .m_packet,
    .report_ready(ours_ready),
    .report_is_freed(ours_is_freed),
    .report(ours),
    .is_overflow
  );

endmodule

`default_nettype wire
