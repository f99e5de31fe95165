// A logical endpoint: the users' FIFOs to and from the same endpoint of every node.
//
// BlueDBM, section 3.2.1: `send` takes data and a destination, `receive` gives data and a source;
// both have back pressure. Section 3.2.3: an endpoint has end-to-end flow control or has it not.
// Without, a receiver that does not drain holds up the links behind it. With it a packet is sent
// only when there is a place for it in the receiving FIFO: it costs packets that give places back,
// and a FIFO with WINDOW places for each node.

`default_nettype none

module endpoint #(
  parameter int INDEX = 0,
  parameter bit END_TO_END = 1'b0,
  parameter int NODES = 20,         // nodes 0 to NODES - 1 may send here; for END_TO_END
  parameter int WINDOW = 16,        // packets on their way from node to node; for END_TO_END
  parameter int BATCH = WINDOW < 4 ? 1 : WINDOW / 4,  // places that go back at once, at least
  parameter int SEND_DEPTH = 16,    // words; a power of two
  parameter int RECEIVE_DEPTH = 16  // words; a power of two, at least NODES * WINDOW if END_TO_END
) (
  input  wire  logic                                 clk,
  input  wire  logic                                 reset,
  input  wire  logic [network_pkg::NODE_BITS-1:0]    node,    // this node's number

  // The user's side.
  input  wire  logic                                 send_valid,
  output logic                                       send_ready,
  input  wire  logic [network_pkg::NODE_BITS-1:0]    send_destination,
  input  wire  logic [network_pkg::PAYLOAD_BITS-1:0] send_payload,

  output logic                                       receive_valid,
  input  wire  logic                                 receive_ready,
  output logic [network_pkg::NODE_BITS-1:0]          receive_source,
  output logic [network_pkg::PAYLOAD_BITS-1:0]       receive_payload,

  // The network's side.
  output logic                                       m_valid,
  input  wire  logic                                 m_ready,
  output network_pkg::packet_t                       m_packet,

  input  wire  logic                                 s_valid,
  output logic                                       s_ready,
  input  wire  network_pkg::packet_t                 s_packet
);

  localparam int NODE_BITS = network_pkg::NODE_BITS;
  localparam int WORD_BITS = NODE_BITS + network_pkg::PAYLOAD_BITS;
  localparam int COUNT_BITS = $clog2(WINDOW + 1);

  if (INDEX < 0 || INDEX >= 1 << network_pkg::ENDPOINT_BITS) begin : check_index
    $error("endpoint: INDEX is not in 0 to 15");
  end
  if (END_TO_END && (NODES < 1 || NODES > 1 << NODE_BITS)) begin : check_nodes
    $error("endpoint: NODES is not in 1 to 32");
  end
  if (END_TO_END && (BATCH < 1 || BATCH > WINDOW)) begin : check_batch
    $error("endpoint: BATCH is not in 1 to WINDOW");
  end
  if (END_TO_END && (WINDOW < 1 || RECEIVE_DEPTH < NODES * WINDOW)) begin : check_window
    $error("endpoint: RECEIVE_DEPTH has no WINDOW for each node");
  end

  logic                       queued_valid;
  logic                       queued_ready;
  logic [WORD_BITS-1:0]       queued;
  network_pkg::packet_t       packet;
  logic                       arrived_valid;
  logic                       arrived_ready;

  packet_fifo #(
    .WIDTH(WORD_BITS),
    .DEPTH(SEND_DEPTH)
  ) sending (
    .clk,
    .reset,
    .s_valid(send_valid),
    .s_ready(send_ready),
    .s_data({send_destination, send_payload}),
    .m_valid(queued_valid),
    .m_ready(queued_ready),
    .m_data(queued),
    .level()
  );

  packet_fifo #(
    .WIDTH(WORD_BITS),
    .DEPTH(RECEIVE_DEPTH)
  ) receiving (
    .clk,
    .reset,
    .s_valid(arrived_valid),
    .s_ready(arrived_ready),
    .s_data({s_packet.source, s_packet.payload}),
    .m_valid(receive_valid),
    .m_ready(receive_ready),
    .m_data({receive_source, receive_payload}),
    .level()
  );

  assign packet.credit = 1'b0;
  assign packet.endpoint = network_pkg::ENDPOINT_BITS'(INDEX);
  assign packet.source = node;
  assign packet.destination = queued[WORD_BITS-1 -: NODE_BITS];
  assign packet.payload = queued[network_pkg::PAYLOAD_BITS-1:0];

  if (!END_TO_END) begin : plain
    assign m_valid = queued_valid;
    assign queued_ready = m_ready;
    assign m_packet = packet;
    assign arrived_valid = s_valid;
    assign s_ready = arrived_ready;
  end else begin : end_to_end
    typedef logic [COUNT_BITS-1:0] count_t;

    count_t               places [NODES];   // that we may still fill at a node
    count_t               owed [NODES];     // that were emptied here and not yet given back
    logic [NODE_BITS-1:0] asked;            // whose debt is looked at: one node a clock
    logic                 has_place;
    logic                 is_due;
    network_pkg::packet_t giving;
    logic                 give;
    logic                 spend;
    logic                 is_given;
    logic                 is_emptied;

    assign has_place = places[packet.destination] != '0;
    assign is_due = owed[asked] >= count_t'(BATCH);

    assign giving.credit = 1'b1;
    assign giving.endpoint = network_pkg::ENDPOINT_BITS'(INDEX);
    assign giving.source = node;
    assign giving.destination = asked;
    assign giving.payload = network_pkg::PAYLOAD_BITS'(owed[asked]);

    // What gives places back goes first, and is always taken at the other end.
    assign m_valid = is_due || (queued_valid && has_place);
    assign m_packet = is_due ? giving : packet;
    assign queued_ready = m_ready && !is_due && has_place;
    assign give = is_due && m_ready;
    assign spend = queued_valid && queued_ready;

    assign arrived_valid = s_valid && !s_packet.credit;
    assign s_ready = arrived_ready || s_packet.credit;
    assign is_given = s_valid && s_packet.credit;
    assign is_emptied = receive_valid && receive_ready;

    always_ff @(posedge clk) begin
      if (!is_due || m_ready) asked <= asked == NODE_BITS'(NODES - 1) ? '0 : asked + 1'b1;
      for (int n = 0; n < NODES; n++) begin
        places[n] <= places[n]
          - count_t'(spend && packet.destination == NODE_BITS'(n))
          + (is_given && s_packet.source == NODE_BITS'(n) ? count_t'(s_packet.payload) : '0);
        owed[n] <= owed[n]
          + count_t'(is_emptied && receive_source == NODE_BITS'(n))
          - (give && asked == NODE_BITS'(n) ? owed[n] : '0);
        if (reset) begin
          places[n] <= count_t'(WINDOW);
          owed[n] <= '0;
        end
      end
      if (reset) asked <= '0;
    end
  end

endmodule

`default_nettype wire
