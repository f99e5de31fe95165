// Two nodes' endpoints with end-to-end flow control, and a network that delays packets at will.
// Places that may be filled + packets under way + packets in the receiver's FIFO + places owed +
// places on their way back = WINDOW; whatever arrives is taken at once, so the network is never
// held up; the n-th packet received is the n-th sent.
//
// Side 0 is node 0. The fields are narrow here (bench.toml), payloads are numbers.

`default_nettype none

module proof #(
  parameter int WINDOW = 2,
  parameter int BATCH = 2,
  parameter int SEND_DEPTH = 2,
  parameter int STAGES = 2,          // of the network, in each direction
  parameter int CLOCKS = 0           // `progress` holds after so many; 0: only safety
) (
  input wire logic              clk,
  input wire logic [1:0]        send_valid,
  input wire logic [1:0]        receive_ready,
  input wire logic [2*STAGES:0] go        // which stages of the network may move
);

  localparam int RECEIVE_DEPTH = 2 * WINDOW;
  localparam int NUMBER_BITS = network_pkg::PAYLOAD_BITS;
  localparam int WORD_BITS = 1 + NUMBER_BITS;
  localparam int COUNT_BITS = $clog2(WINDOW + 1);
  localparam int SEND_LEVEL_BITS = $clog2(SEND_DEPTH) + 1;
  localparam int LEVEL_BITS = $clog2(RECEIVE_DEPTH) + 1;
  typedef logic [NUMBER_BITS-1:0] number_t;

  logic started = CLOCKS != 0;
  always_ff @(posedge clk) started <= 1'b1;
  wire reset = !started;

  number_t    in_counts [2];      // packets that side s has sent
  number_t    out_counts [2];     // packets that side s has received
  logic [1:0] send_ready;
  logic [1:0] receive_valid;
  logic [1:0] receive_source;
  number_t    received [2];
  logic [1:0] m_valid;
  logic [1:0] m_ready;
  logic [1:0] s_valid;
  logic [1:0] s_ready;

  // Registers of the design; side 0 lowest.
  wire [2*COUNT_BITS-1:0] places;      // probe sides[1].endpoint.end_to_end.places[0],sides[0].endpoint.end_to_end.places[1]
  wire [2*COUNT_BITS-1:0] own_places;  // probe sides[1].endpoint.end_to_end.places[1],sides[0].endpoint.end_to_end.places[0]
  wire [2*COUNT_BITS-1:0] owed;        // probe sides[1].endpoint.end_to_end.owed[0],sides[0].endpoint.end_to_end.owed[1]
  wire [2*COUNT_BITS-1:0] own_owed;    // probe sides[1].endpoint.end_to_end.owed[1],sides[0].endpoint.end_to_end.owed[0]
  wire [1:0] asked;  // probe sides[@].endpoint.end_to_end.asked
  wire [2*SEND_LEVEL_BITS-1:0] send_level;  // probe sides[@].endpoint.sending.level
  wire [2*SEND_LEVEL_BITS-1:0] send_taken;  // probe sides[@].endpoint.sending.taken
  wire [2*SEND_DEPTH*WORD_BITS-1:0] send_words;  // probe sides[@].endpoint.sending.memory[*]
  wire [2*LEVEL_BITS-1:0] receive_level;  // probe sides[@].endpoint.receiving.level
  wire [2*LEVEL_BITS-1:0] receive_taken;  // probe sides[@].endpoint.receiving.taken
  wire [RECEIVE_DEPTH*2*WORD_BITS-1:0] receive_words; // probe sides[@].endpoint.receiving.memory[*]

  // On the ways from each side: packets, the first stage lowest, and places given back.
  localparam int WIDTH = network_pkg::PACKET_BITS;
  logic [2*STAGES*WIDTH-1:0] ways;
  logic [15:0]               returned;

  logic [1:0] conserved;
  logic [1:0] holds;

  for (genvar s = 0; s < 2; s++) begin : sides
    network_pkg::packet_t m_packet;
    network_pkg::packet_t s_packet;

    endpoint #(
      .INDEX(1), .END_TO_END(1'b1), .NODES(2), .WINDOW(WINDOW), .BATCH(BATCH),
      .SEND_DEPTH(SEND_DEPTH), .RECEIVE_DEPTH(RECEIVE_DEPTH)
    ) endpoint (
      .clk, .reset, .node(1'(s)),
      .send_valid(send_valid[s]), .send_ready(send_ready[s]),
      .send_destination(1'(1 - s)), .send_payload(in_counts[s]),
      .receive_valid(receive_valid[s]), .receive_ready(receive_ready[s]),
      .receive_source(receive_source[s]), .receive_payload(received[s]),
      .m_valid(m_valid[s]), .m_ready(m_ready[s]), .m_packet,
      .s_valid(s_valid[s]), .s_ready(s_ready[s]), .s_packet
    );

    // The way from here to the other side: stage 0 is the first. A packet may move into an empty
    // stage, or leave the last one.
    logic [STAGES-1:0]    full;
    logic [STAGES:0]      move;    // into stage i; the last: out

    assign move[0] = m_valid[s] && !full[0] && go[STAGES*s];
    assign m_ready[s] = !full[0] && go[STAGES*s];
    for (genvar i = 1; i < STAGES; i++) begin : moves
      assign move[i] = full[i-1] && !full[i] && go[STAGES*s+i];
    end
    assign s_valid[1-s] = full[STAGES-1] && go[2*STAGES];
    assign move[STAGES] = s_valid[1-s] && s_ready[1-s];
    assign s_packet = ways[WIDTH * (STAGES * (1 - s) + STAGES - 1) +: WIDTH];

    always_ff @(posedge clk) begin
      for (int i = 0; i < STAGES; i++) begin
        if (move[i]) full[i] <= 1'b1;
        else if (move[i+1]) full[i] <= 1'b0;
      end
      if (move[0]) ways[WIDTH * STAGES * s +: WIDTH] <= m_packet;
      for (int i = 1; i < STAGES; i++) begin
        if (move[i]) ways[WIDTH * (STAGES * s + i) +: WIDTH] <=
                       ways[WIDTH * (STAGES * s + i - 1) +: WIDTH];
      end
      in_counts[s] <= in_counts[s] + number_t'(send_valid[s] && send_ready[s]);
      out_counts[s] <= out_counts[s] + number_t'(receive_valid[s] && receive_ready[s]);
      if (reset) begin
        full <= '0;
        in_counts[s] <= '0;
        out_counts[s] <= '0;
      end
    end

    // Packets, and places given back, on the way from here.
    logic [7:0] packets;
    logic [7:0] credits;
    logic       is_wired;
    network_pkg::packet_t at;
    number_t    number;   // of the next packet, from the receiver's FIFO back
    localparam int OTHER = 1 - s;
    wire [LEVEL_BITS-1:0] level = receive_level[LEVEL_BITS*OTHER +: LEVEL_BITS];
    wire [LEVEL_BITS-1:0] taken = receive_taken[LEVEL_BITS*OTHER +: LEVEL_BITS];
    wire [SEND_LEVEL_BITS-1:0] queued = send_level[SEND_LEVEL_BITS*s +: SEND_LEVEL_BITS];
    wire [SEND_LEVEL_BITS-1:0] queue_taken = send_taken[SEND_LEVEL_BITS*s +: SEND_LEVEL_BITS];

    always_comb begin
      packets = '0;
      credits = '0;
      is_wired = 1'b1;
      number = out_counts[OTHER];

      for (int i = 0; i < RECEIVE_DEPTH; i++) begin
        if (i < level) begin
          if (receive_words[WORD_BITS * (RECEIVE_DEPTH * OTHER + (taken + i) % RECEIVE_DEPTH)
                            +: WORD_BITS] != {1'(s), number}) is_wired = 1'b0;
          number = number + 1'b1;
        end
      end
      for (int i = STAGES - 1; i >= 0; i--) begin
        at = ways[WIDTH * (STAGES * s + i) +: WIDTH];
        if (full[i]) begin
          if (at.source != s || at.destination != OTHER || at.endpoint != 1'b1)
            is_wired = 1'b0;
          if (at.credit) begin
            if (at.payload == '0 || at.payload > WINDOW) is_wired = 1'b0;
            credits = credits + at.payload;
          end else begin
            packets = packets + 1'b1;
            if (at.payload != number) is_wired = 1'b0;
            number = number + 1'b1;
          end
        end
      end
      for (int i = 0; i < SEND_DEPTH; i++) begin
        if (i < queued) begin
          if (send_words[WORD_BITS * (SEND_DEPTH * s + (queue_taken + i) % SEND_DEPTH)
                         +: WORD_BITS] != {1'(OTHER), number}) is_wired = 1'b0;
          number = number + 1'b1;
        end
      end
      if (number != in_counts[s]) is_wired = 1'b0;
    end

    assign returned[8*s +: 8] = credits;

    assign conserved[s] = places[COUNT_BITS*s +: COUNT_BITS] + packets + level +
                          owed[COUNT_BITS*OTHER +: COUNT_BITS] + returned[8*OTHER +: 8] == WINDOW;
    assign holds[s] = is_wired && queued <= SEND_DEPTH && level <= WINDOW &&
                      own_places[COUNT_BITS*s +: COUNT_BITS] == WINDOW &&
                      own_owed[COUNT_BITS*s +: COUNT_BITS] == 0;
  end

  if (CLOCKS == 0) begin : safety
    always_comb begin
      if (started) begin
        a_conserved: assert (conserved == '1);
        a_invariant: assert (holds == '1);
        a_taken: assert ((s_valid & ~s_ready) == '0);
        a_source: assert ((receive_valid & (receive_source ^ 2'b01)) == '0);
        if (receive_valid[0]) a_order_0: assert (received[0] == out_counts[0]);
        if (receive_valid[1]) a_order_1: assert (received[1] == out_counts[1]);
      end
    end
  end else begin : progress
    // From any state that safety allows, a network that moves, and receivers that drain: in CLOCKS
    // clocks each side receives a packet.
    logic [7:0] age = '0;
    number_t    goals [2];
    always_ff @(posedge clk) begin
      if (age == '0) begin
        goals[0] <= out_counts[0];
        goals[1] <= out_counts[1];
      end
      if (age != '1) age <= age + 1'b1;
    end
    always_comb begin
      assume (started && send_valid == '1 && receive_ready == '1 && go == '1);
      if (age == '0) assume (conserved == '1 && holds == '1);
      if (age == CLOCKS) begin
        a_progress_0: assert (out_counts[0] != goals[0]);
        a_progress_1: assert (out_counts[1] != goals[1]);
      end
    end
  end

endmodule

`default_nettype wire
