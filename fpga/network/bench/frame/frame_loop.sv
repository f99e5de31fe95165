// A frame from encoder to decoder, with bits turned over on the way.

`default_nettype none

module frame_loop (
  input  wire  logic                                  clk,
  input  wire  logic                                  reset,
  input  wire  logic                                  s_valid,
  input  wire  network_pkg::packet_t                  s_packet,
  input  wire  logic [network_pkg::SEQUENCE_BITS-1:0] s_sequence,
  input  wire  logic                                  s_is_freed,
  input  wire  logic [network_pkg::SEQUENCE_BITS-1:0] s_report,
  input  wire  logic [network_pkg::FRAME_BITS-1:0]    errors,
  input  wire  logic [network_pkg::SEQUENCE_BITS-1:0] expected,

  output logic [network_pkg::FRAME_BITS-1:0]          frame,
  output logic                                        m_valid,
  output network_pkg::packet_t                        m_packet,
  output logic                                        report_valid,
  output logic                                        report_is_freed,
  output logic [network_pkg::SEQUENCE_BITS-1:0]       report,
  output logic                                        is_refused
);

  logic line_valid;

  frame_encoder encoder (
    .clk, .reset, .s_valid, .s_ready(), .s_packet, .s_sequence, .report_is_freed(s_is_freed),
    .report(s_report), .report_ready(), .line_valid, .line_ready(1'b1), .line_frame(frame)
  );

  frame_decoder decoder (
    .clk, .reset, .line_valid, .line_frame(frame ^ errors), .expected, .m_valid, .m_packet,
    .report_valid, .report_is_freed, .report, .is_refused
  );

endmodule

`default_nettype wire
