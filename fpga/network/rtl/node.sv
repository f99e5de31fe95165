// The storage network of one node: endpoints, internal switch, external switch, ports
// (BlueDBM, figure 4).
//
// Endpoints and ports are numbered from 0; flat buses hold the first one lowest. The internal
// switch takes one packet a clock from the external one, and gives it one.

`default_nettype none

module node #(
  parameter int PORTS = 8,
  parameter int ENDPOINTS = 4,
  parameter bit [63:0] INDICES = 64'h9510,     // 4 bits each; see internal_switch
  parameter bit [15:0] END_TO_END = 16'b1000,  // a bit for each endpoint, not for each index
  parameter int NODES = 20,                    // see endpoint
  parameter int WINDOW = 16,
  parameter int SEND_DEPTH = 16,
  parameter int RECEIVE_DEPTH = 16,            // of endpoints without end-to-end flow control
  parameter int TOKENS = 63,                   // see link_sender
  parameter int TIMEOUT = 512
) (
  input  wire  logic                                      clk,
  input  wire  logic                                      reset,
  input  wire  logic [network_pkg::NODE_BITS-1:0]         number,

  input  wire  logic                                      load,        // see router
  input  wire  logic [network_pkg::TABLE_BITS-1:0]        load_line,
  input  wire  logic [network_pkg::PORT_BITS-1:0]         load_port,

  input  wire  logic [ENDPOINTS-1:0]                           send_valid,
  output logic [ENDPOINTS-1:0]                                 send_ready,
  input  wire  logic [ENDPOINTS*network_pkg::NODE_BITS-1:0]    send_destination,
  input  wire  logic [ENDPOINTS*network_pkg::PAYLOAD_BITS-1:0] send_payload,

  output logic [ENDPOINTS-1:0]                                 receive_valid,
  input  wire  logic [ENDPOINTS-1:0]                           receive_ready,
  output logic [ENDPOINTS*network_pkg::NODE_BITS-1:0]          receive_source,
  output logic [ENDPOINTS*network_pkg::PAYLOAD_BITS-1:0]       receive_payload,

  output logic [PORTS-1:0]                                line_out_valid,
  input  wire  logic [PORTS-1:0]                          line_out_ready,
  output logic [PORTS*network_pkg::FRAME_BITS-1:0]        line_out_frame,
  input  wire  logic [PORTS-1:0]                          line_in_valid,
  input  wire  logic [PORTS*network_pkg::FRAME_BITS-1:0]  line_in_frame,

  // What software reads. The first two are of one clock, for counters.
  output logic [PORTS-1:0]                                is_repeating,
  output logic [PORTS-1:0]                                is_refused,
  output logic [PORTS-1:0]                                is_overflow,
  output logic [PORTS:0]                                  is_unroutable,
  output logic                                            is_unknown
);

  localparam int WIDTH = network_pkg::PACKET_BITS;
  localparam int NODE_BITS = network_pkg::NODE_BITS;
  localparam int PAYLOAD_BITS = network_pkg::PAYLOAD_BITS;
  localparam int FRAME_BITS = network_pkg::FRAME_BITS;

  // Into and out of the external switch.
  logic [PORTS:0]               in_valid;
  logic [PORTS:0]               in_ready;
  logic [(PORTS+1)*WIDTH-1:0]   in_packet;
  logic [PORTS:0]               out_valid;
  logic [PORTS:0]               out_ready;
  logic [(PORTS+1)*WIDTH-1:0]   out_packet;

  // Into and out of the internal switch.
  logic [ENDPOINTS:0]             from_valid;
  logic [ENDPOINTS:0]             from_ready;
  logic [(ENDPOINTS+1)*WIDTH-1:0] from_packet;
  logic [ENDPOINTS:0]             to_valid;
  logic [ENDPOINTS:0]             to_ready;
  logic [(ENDPOINTS+1)*WIDTH-1:0] to_packet;

  assign from_valid[ENDPOINTS] = out_valid[PORTS];
  assign out_ready[PORTS] = from_ready[ENDPOINTS];
  assign from_packet[WIDTH*ENDPOINTS +: WIDTH] = out_packet[WIDTH*PORTS +: WIDTH];

  // Each switch has a path from the ready of its outputs to that of its inputs: a FIFO on one of
  // the ways between them keeps the two from closing a combinational loop.
  packet_fifo #(
    .WIDTH(WIDTH),
    .DEPTH(2)
  ) outbound (
    .clk,
    .reset,
    .s_valid(to_valid[ENDPOINTS]),
    .s_ready(to_ready[ENDPOINTS]),
    .s_data(to_packet[WIDTH*ENDPOINTS +: WIDTH]),
    .m_valid(in_valid[PORTS]),
    .m_ready(in_ready[PORTS]),
    .m_data(in_packet[WIDTH*PORTS +: WIDTH]),
    .level()
  );

  for (genvar e = 0; e < ENDPOINTS; e++) begin : endpoints
    endpoint #(
      .INDEX(32'(INDICES[network_pkg::ENDPOINT_BITS*e +: network_pkg::ENDPOINT_BITS])),
      .END_TO_END(END_TO_END[e]),
      .NODES(NODES),
      .WINDOW(WINDOW),
      .SEND_DEPTH(SEND_DEPTH),
      .RECEIVE_DEPTH(END_TO_END[e] ? 1 << $clog2(NODES * WINDOW) : RECEIVE_DEPTH)
    ) endpoint (
      .clk,
      .reset,
      .node(number),
      .send_valid(send_valid[e]),
      .send_ready(send_ready[e]),
      .send_destination(send_destination[NODE_BITS*e +: NODE_BITS]),
      .send_payload(send_payload[PAYLOAD_BITS*e +: PAYLOAD_BITS]),
      .receive_valid(receive_valid[e]),
      .receive_ready(receive_ready[e]),
      .receive_source(receive_source[NODE_BITS*e +: NODE_BITS]),
      .receive_payload(receive_payload[PAYLOAD_BITS*e +: PAYLOAD_BITS]),
      .m_valid(from_valid[e]),
      .m_ready(from_ready[e]),
      .m_packet(from_packet[WIDTH*e +: WIDTH]),
      .s_valid(to_valid[e]),
      .s_ready(to_ready[e]),
      .s_packet(to_packet[WIDTH*e +: WIDTH])
    );
  end

  internal_switch #(
    .ENDPOINTS(ENDPOINTS),
    .INDICES(INDICES)
  ) internal_switch (
    .clk,
    .reset,
    .node(number),
    .s_valid(from_valid),
    .s_ready(from_ready),
    .s_packet(from_packet),
    .m_valid(to_valid),
    .m_ready(to_ready),
    .m_packet(to_packet),
    .is_unknown
  );

  external_switch #(
    .PORTS(PORTS)
  ) external_switch (
    .clk,
    .reset,
    .node(number),
    .load,
    .load_line,
    .load_port,
    .s_valid(in_valid),
    .s_ready(in_ready),
    .s_packet(in_packet),
    .m_valid(out_valid),
    .m_ready(out_ready),
    .m_packet(out_packet),
    .is_unroutable
  );

  for (genvar p = 0; p < PORTS; p++) begin : ports
    link #(
      .TOKENS(TOKENS),
      .TIMEOUT(TIMEOUT)
    ) link (
      .clk,
      .reset,
      .s_valid(out_valid[p]),
      .s_ready(out_ready[p]),
      .s_packet(out_packet[WIDTH*p +: WIDTH]),
      .m_valid(in_valid[p]),
      .m_ready(in_ready[p]),
      .m_packet(in_packet[WIDTH*p +: WIDTH]),
      .line_out_valid(line_out_valid[p]),
      .line_out_ready(line_out_ready[p]),
      .line_out_frame(line_out_frame[FRAME_BITS*p +: FRAME_BITS]),
      .line_in_valid(line_in_valid[p]),
      .line_in_frame(line_in_frame[FRAME_BITS*p +: FRAME_BITS]),
      .is_repeating(is_repeating[p]),
      .is_refused(is_refused[p]),
      .is_overflow(is_overflow[p])
    );
  end

endmodule

`default_nettype wire
