// Puts packets, reports and checks into frames; there is always a frame to send.
//
// A link without packets sends idle frames all the time: so tokens come back, and what a lost
// frame reported is reported again.

`default_nettype none

module frame_encoder (
  input  wire  logic                                  clk,
  input  wire  logic                                  reset,

  input  wire  logic                                  s_valid,
  output logic                                        s_ready,
  input  wire  network_pkg::packet_t                  s_packet,
  input  wire  logic [network_pkg::SEQUENCE_BITS-1:0] s_sequence,

  input  wire  logic                                  report_is_freed,
  input  wire  logic [network_pkg::SEQUENCE_BITS-1:0] report,
  output logic                                        report_ready,   // it goes into a frame

  output logic                                        line_valid,
  input  wire  logic                                  line_ready,
  output network_pkg::frame_t                         line_frame
);

  network_pkg::packet_t                   packet;
  logic [network_pkg::MESSAGE_BITS-1:0]   message;
  logic [network_pkg::CHECK_BITS-1:0]     check;

  assign s_ready = !line_valid || line_ready;
  assign report_ready = s_ready;
  assign packet = s_valid ? s_packet : '0;
  assign message = {s_valid, report_is_freed, report, packet};
  assign check = network_pkg::crc_of('1, message) ^
                 (s_valid ? network_pkg::crc_of_sequence(s_sequence) : '0);

  always_ff @(posedge clk) begin
    if (s_ready) begin
      line_valid <= 1'b1;
      line_frame <= {message, check};
    end
    if (reset) line_valid <= 1'b0;
  end

endmodule

`default_nettype wire
