// Relays packets between the ports of a node and its internal switch (BlueDBM, figure 4).
//
// Input and output PORTS are the internal switch. Every input has a router of its own.

`default_nettype none

module external_switch #(
  parameter int PORTS = 8
) (
  input  wire  logic                                          clk,
  input  wire  logic                                          reset,
  input  wire  logic [network_pkg::NODE_BITS-1:0]             node,

  input  wire  logic                                          load,       // see router
  input  wire  logic [network_pkg::TABLE_BITS-1:0]            load_line,
  input  wire  logic [network_pkg::PORT_BITS-1:0]             load_port,

  input  wire  logic [PORTS:0]                                s_valid,
  output logic [PORTS:0]                                      s_ready,
  input  wire  logic [(PORTS+1)*network_pkg::PACKET_BITS-1:0] s_packet,

  output logic [PORTS:0]                                      m_valid,
  input  wire  logic [PORTS:0]                                m_ready,
  output logic [(PORTS+1)*network_pkg::PACKET_BITS-1:0]       m_packet,

  output logic [PORTS:0]                                      is_unroutable
);

  localparam int WIDTH = network_pkg::PACKET_BITS;
  localparam int OUTPUT_BITS = $clog2(PORTS + 1);

  logic [PORTS:0]                       routed_valid;
  logic [PORTS:0]                       routed_ready;
  logic [(PORTS+1)*WIDTH-1:0]           routed_packet;
  logic [(PORTS+1)*OUTPUT_BITS-1:0]     routed_output;

  for (genvar i = 0; i <= PORTS; i++) begin : inputs
    router #(
      .PORTS(PORTS)
    ) router (
      .clk,
      .reset,
      .node,
      .load,
      .load_line,
      .load_port,
      .s_valid(s_valid[i]),
      .s_ready(s_ready[i]),
      .s_packet(s_packet[WIDTH*i +: WIDTH]),
      .m_valid(routed_valid[i]),
      .m_ready(routed_ready[i]),
      .m_packet(routed_packet[WIDTH*i +: WIDTH]),
      .m_output(routed_output[OUTPUT_BITS*i +: OUTPUT_BITS]),
      .is_unroutable(is_unroutable[i])
    );
  end

  crossbar #(
    .INPUTS(PORTS + 1),
    .OUTPUTS(PORTS + 1),
    .WIDTH(WIDTH)
  ) crossbar (
    .clk,
    .reset,
    .s_valid(routed_valid),
    .s_ready(routed_ready),
    .s_output(routed_output),
    .s_data(routed_packet),
    .m_valid,
    .m_ready,
    .m_data(m_packet)
  );

endmodule

`default_nettype wire
