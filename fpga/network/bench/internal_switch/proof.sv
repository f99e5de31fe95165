// Packets for this node come out at the endpoint of their index, others at the external switch,
// those for an index that is not here nowhere: they stay. Order is the crossbar's: bench/crossbar.
//
// The fields are narrow here (bench.toml): two endpoints, of indices 3 and 1.

`default_nettype none

module proof (
  input wire logic                                  clk,
  input wire logic [network_pkg::NODE_BITS-1:0]     node_input,
  input wire logic [2:0]                            s_valid,
  input wire logic [3*network_pkg::PACKET_BITS-1:0] s_packet,
  input wire logic [2:0]                            m_ready
);

  localparam int WIDTH = network_pkg::PACKET_BITS;

  logic started = 1'b0;
  always_ff @(posedge clk) started <= 1'b1;
  wire reset = !started;

  logic [network_pkg::NODE_BITS-1:0] node;
  always_ff @(posedge clk) if (reset) node <= node_input;

  logic [2:0]         s_ready;
  logic [2:0]         m_valid;
  logic [3*WIDTH-1:0] m_packet;
  logic               is_unknown;

  internal_switch #(
    .ENDPOINTS(2), .INDICES(64'h13)
  ) switch (
    .clk, .reset, .node, .s_valid, .s_ready, .s_packet, .m_valid, .m_ready, .m_packet, .is_unknown
  );

  logic [2:0] is_stranger;
  for (genvar i = 0; i < 3; i++) begin : sides
    network_pkg::packet_t in;
    network_pkg::packet_t out;
    assign in = s_packet[WIDTH*i +: WIDTH];
    assign out = m_packet[WIDTH*i +: WIDTH];
    assign is_stranger[i] = s_valid[i] && in.destination == node &&
                            in.endpoint != 4'd3 && in.endpoint != 4'd1;
    wire is_here = out.destination == node;
    always_comb begin
      if (started) begin
        if (m_valid[i] && i == 0) assert (is_here && out.endpoint == 4'd3);
        if (m_valid[i] && i == 1) assert (is_here && out.endpoint == 4'd1);
        if (m_valid[i] && i == 2) assert (!is_here);
        if (is_stranger[i]) assert (!s_ready[i]);
      end
    end
  end

  always_comb begin
    if (started) a_unknown: assert (is_unknown == (is_stranger != '0));
  end

endmodule

`default_nettype wire
