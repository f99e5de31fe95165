// Moves packets between the endpoints of a node and its external switch (BlueDBM, figure 4).
//
// Packets for this node go from endpoint to endpoint without leaving it. A packet for an index
// that no endpoint here has stays, as one without a route does: `is_unknown` then says so.

`default_nettype none

module internal_switch #(
  parameter int ENDPOINTS = 4,
  // The endpoints' indices, 4 bits each, the first lowest; gaps are allowed.
  parameter bit [63:0] INDICES = 64'h9510
) (
  input  wire  logic                                          clk,
  input  wire  logic                                          reset,
  input  wire  logic [network_pkg::NODE_BITS-1:0]             node,

  // Endpoints 0 to ENDPOINTS - 1, then the external switch.
  input  wire  logic [ENDPOINTS:0]                                s_valid,
  output logic [ENDPOINTS:0]                                      s_ready,
  input  wire  logic [(ENDPOINTS+1)*network_pkg::PACKET_BITS-1:0] s_packet,

  output logic [ENDPOINTS:0]                                      m_valid,
  input  wire  logic [ENDPOINTS:0]                                m_ready,
  output logic [(ENDPOINTS+1)*network_pkg::PACKET_BITS-1:0]       m_packet,

  output logic                                                    is_unknown
);

  localparam int WIDTH = network_pkg::PACKET_BITS;
  localparam int OUTPUT_BITS = $clog2(ENDPOINTS + 1);
  localparam int INDEX_BITS = network_pkg::ENDPOINT_BITS;

  if (ENDPOINTS < 1 || ENDPOINTS > 1 << INDEX_BITS) begin : check_endpoints
    $error("internal_switch: ENDPOINTS is not in 1 to 16");
  end

  for (genvar a = 0; a < ENDPOINTS; a++) begin : index
    for (genvar b = 0; b < a; b++) begin : other
      if (INDICES[INDEX_BITS*a +: INDEX_BITS] == INDICES[INDEX_BITS*b +: INDEX_BITS])
      begin : check_twice
        $error("internal_switch: an index is in INDICES twice");
      end
    end
  end

  logic [ENDPOINTS:0]                   is_known;
  logic [ENDPOINTS:0]                   switch_ready;
  logic [(ENDPOINTS+1)*OUTPUT_BITS-1:0] outputs;

  for (genvar i = 0; i <= ENDPOINTS; i++) begin : inputs
    network_pkg::packet_t   packet;
    logic [OUTPUT_BITS-1:0] position;
    logic                   is_here;

    assign packet = s_packet[WIDTH*i +: WIDTH];

    always_comb begin
      position = OUTPUT_BITS'(ENDPOINTS);
      is_here = packet.destination == node;
      is_known[i] = !is_here;
      for (int e = 0; e < ENDPOINTS; e++) begin
        if (is_here && packet.endpoint == INDICES[INDEX_BITS*e +: INDEX_BITS]) begin
          position = OUTPUT_BITS'(e);
          is_known[i] = 1'b1;
        end
      end
    end

    assign outputs[OUTPUT_BITS*i +: OUTPUT_BITS] = position;
  end

  assign is_unknown = (s_valid & ~is_known) != '0;
  assign s_ready = switch_ready & is_known;

  crossbar #(
    .INPUTS(ENDPOINTS + 1),
    .OUTPUTS(ENDPOINTS + 1),
    .WIDTH(WIDTH)
  ) crossbar (
    .clk,
    .reset,
    .s_valid(s_valid & is_known),
    .s_ready(switch_ready),
    .s_output(outputs),
    .s_data(s_packet),
    .m_valid,
    .m_ready,
    .m_data(m_packet)
  );

endmodule

`default_nettype wire
