// Checks frames, and holds back those with bit errors and packets that are not the next one.

`default_nettype none

module frame_decoder (
  input  wire  logic                                  clk,
  input  wire  logic                                  reset,

  input  wire  logic                                  line_valid,
  input  wire  network_pkg::frame_t                   line_frame,

  input  wire  logic [network_pkg::SEQUENCE_BITS-1:0] expected,       // see link_receiver
  output logic                                        m_valid,
  output network_pkg::packet_t                        m_packet,

  output logic                                        report_valid,
  output logic                                        report_is_freed,
  output logic [network_pkg::SEQUENCE_BITS-1:0]       report,

  output logic                                        is_refused      // a frame was held back
);

  logic                               valid;
  network_pkg::frame_t                frame;
  // What the check is off by: zero for a good idle frame, the sequence's part for a packet.
  logic [network_pkg::CHECK_BITS-1:0] difference;
  logic [network_pkg::CHECK_BITS-1:0] wanted;
  logic                               is_good;

  assign wanted = frame.has_packet ? network_pkg::crc_of_sequence(expected) : '0;
  assign is_good = valid && difference == wanted;
  assign m_valid = is_good && frame.has_packet;
  assign m_packet = frame.packet;
  assign report_valid = is_good;
  assign report_is_freed = frame.is_freed;
  assign report = frame.report;
  assign is_refused = valid && !is_good;

  always_ff @(posedge clk) begin
    valid <= line_valid;
    frame <= line_frame;
    difference <= line_frame.check ^
      network_pkg::crc_of('1, line_frame[network_pkg::FRAME_BITS-1:network_pkg::CHECK_BITS]);
    if (reset) valid <= 1'b0;
  end

endmodule

`default_nettype wire
