// Packets go on in order, none is lost, each with the port that the table had when it was taken,
// or with the internal switch's output if it is for this node. One without a route stays.
//
// Payloads are numbers. The fields are narrow here (bench.toml), so the table has 8 lines.

`default_nettype none

module proof (
  input wire logic                               clk,
  input wire logic [network_pkg::NODE_BITS-1:0]  node_input,
  input wire logic                               load,
  input wire logic [network_pkg::TABLE_BITS-1:0] load_line,
  input wire logic [network_pkg::PORT_BITS-1:0]  load_port,
  input wire logic                               s_valid,
  input wire network_pkg::packet_t               s_any,
  input wire logic                               m_ready
);

  localparam int LINES = 1 << network_pkg::TABLE_BITS;
  localparam int PORT_BITS = network_pkg::PORT_BITS;
  localparam int PAYLOAD_BITS = network_pkg::PAYLOAD_BITS;

  logic started = 1'b0;
  always_ff @(posedge clk) started <= 1'b1;
  wire reset = !started;

  logic [network_pkg::NODE_BITS-1:0] node;
  always_ff @(posedge clk) if (reset) node <= node_input;

  logic [PAYLOAD_BITS-1:0] in_count;
  logic [PAYLOAD_BITS-1:0] out_count;
  network_pkg::packet_t    s_packet;
  network_pkg::packet_t    m_packet;
  logic                    s_ready;
  logic                    m_valid;
  logic [3:0]              m_output;
  logic                    is_unroutable;

  always_comb begin
    s_packet = s_any;
    s_packet.payload = in_count;
  end

  router #(
    .PORTS(8)
  ) router (
    .clk, .reset, .node, .load, .load_line, .load_port, .s_valid, .s_ready, .s_packet,
    .m_valid, .m_ready, .m_packet, .m_output, .is_unroutable
  );

  // Our own table, and what the packet in the register must have.
  logic [LINES*PORT_BITS-1:0] table_ports;
  logic [LINES-1:0]           table_loaded = '0;
  logic [3:0]                 wanted_output;
  network_pkg::packet_t       wanted_packet;

  wire [network_pkg::TABLE_BITS-1:0] line = {s_packet.endpoint, s_packet.destination};
  wire is_for_us = s_packet.destination == node;
  wire is_taken = s_valid && s_ready;

  always_ff @(posedge clk) begin
    if (load) begin
      table_ports[PORT_BITS * load_line +: PORT_BITS] <= load_port;
      table_loaded[load_line] <= 1'b1;
    end
    if (is_taken) begin
      wanted_output <= is_for_us ? 4'd8 : 4'(table_ports[PORT_BITS * line +: PORT_BITS]);
      wanted_packet <= s_packet;
    end
    in_count <= in_count + PAYLOAD_BITS'(is_taken);
    out_count <= out_count + PAYLOAD_BITS'(m_valid && m_ready);
    if (reset) begin
      in_count <= '0;
      out_count <= '0;
    end
  end

  wire [LINES*(PORT_BITS+1)-1:0] lines;   // probe router.table_lines[*]

  always_comb begin
    for (int i = 0; i < LINES; i++) begin
      assert (lines[(PORT_BITS+1)*i + PORT_BITS] == table_loaded[i]);
      if (table_loaded[i]) assert (lines[(PORT_BITS+1)*i +: PORT_BITS] ==
                                   table_ports[PORT_BITS*i +: PORT_BITS]);
    end
    if (started) begin
      a_kept: assert (PAYLOAD_BITS'(in_count - out_count) == m_valid);
      if (m_valid) begin
        a_route: assert (m_output == wanted_output);
        a_packet: assert (m_packet == wanted_packet && m_packet.payload == out_count);
      end
      a_stays: assert (is_unroutable == (s_valid && !is_for_us && !table_loaded[line]));
      a_progress: assert (is_taken ==
                          (s_valid && !is_unroutable && (!m_valid || m_ready)));
    end
  end

endmodule

`default_nettype wire
