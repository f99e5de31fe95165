// Finds the output of the external switch for each packet of one input: for another node the port
// in the line of its (endpoint, destination) in the routing table, for this node the internal
// switch.
//
// BlueDBM, section 3.2.3: the route is fixed for each logical endpoint and destination, so packets
// of an endpoint stay in order without a completion buffer; there is no discovery, tables come
// from a configuration file. Here: from the rack file, `flashmesh rack routes`.
//
// Packets are never dropped. One whose line was never loaded stays, and all behind it:
// `is_unroutable` then says so.

`default_nettype none

module router #(
  parameter int PORTS = 8,
  parameter int OUTPUT_BITS = $clog2(PORTS + 1)    // output PORTS is the internal switch
) (
  input  wire  logic                               clk,
  input  wire  logic                               reset,
  input  wire  logic [network_pkg::NODE_BITS-1:0]  node,         // this node's number

  // Writes a line of the table. Lines outlive a reset.
  input  wire  logic                               load,
  input  wire  logic [network_pkg::TABLE_BITS-1:0] load_line,    // {endpoint, destination}
  input  wire  logic [network_pkg::PORT_BITS-1:0]  load_port,

  input  wire  logic                               s_valid,
  output logic                                     s_ready,
  input  wire  network_pkg::packet_t               s_packet,

  output logic                                     m_valid,
  input  wire  logic                               m_ready,
  output network_pkg::packet_t                     m_packet,
  output logic [OUTPUT_BITS-1:0]                   m_output,

  output logic                                     is_unroutable
);

  if (PORTS < 1 || PORTS > 1 << network_pkg::PORT_BITS) begin : check_ports
    $error("router: PORTS is not in 1 to 8");
  end

  localparam int LINES = 1 << network_pkg::TABLE_BITS;

  // {is loaded, port}. An FPGA gives memories their first contents with its configuration.
  logic [network_pkg::PORT_BITS:0]    table_lines [LINES];
  logic [network_pkg::PORT_BITS:0]    found;
  logic                               is_for_us;
  logic                               is_routable;

  initial begin
    for (int i = 0; i < LINES; i++) table_lines[i] = '0;
  end

  assign found = table_lines[{s_packet.endpoint, s_packet.destination}];
  assign is_for_us = s_packet.destination == node;
  assign is_routable = is_for_us || found[network_pkg::PORT_BITS];
  assign is_unroutable = s_valid && !is_routable;
  assign s_ready = is_routable && (!m_valid || m_ready);

  always_ff @(posedge clk) begin
    if (load) table_lines[load_line] <= {1'b1, load_port};
    if (!m_valid || m_ready) begin
      m_valid <= s_valid && is_routable;
      m_packet <= s_packet;
      m_output <= is_for_us ? OUTPUT_BITS'(PORTS) : OUTPUT_BITS'(found[network_pkg::PORT_BITS-1:0]);
    end
    if (reset) m_valid <= 1'b0;
  end

endmodule

`default_nettype wire
