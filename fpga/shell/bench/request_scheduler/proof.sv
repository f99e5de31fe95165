// The n-th request out for a unit is the n-th in for it; one for a unit that there is not is
// dropped, alone, and shows; requests move on unless the queue of the first one's unit is full.
//
// A request is its number among those for its unit.

`default_nettype none

module proof #(
  parameter int UNITS = 3,
  parameter int DEPTH = 2,
  parameter int UNIT_BITS = $clog2(UNITS)
) (
  input wire logic                 clk,
  input wire logic                 s_valid,
  input wire logic [UNIT_BITS-1:0] s_unit,
  input wire logic [UNITS-1:0]     m_ready
);

  localparam int ALL = 1 << UNIT_BITS;
  localparam int NUMBER_BITS = 4;
  localparam int LEVEL_BITS = $clog2(DEPTH) + 1;
  localparam int WORD_BITS = UNIT_BITS + NUMBER_BITS;
  typedef logic [NUMBER_BITS-1:0] number_t;

  logic started = 1'b0;
  always_ff @(posedge clk) started <= 1'b1;
  wire reset = !started;

  logic                         s_ready;
  logic [UNITS-1:0]             m_valid;
  logic [UNITS*NUMBER_BITS-1:0] m_request;
  logic                         is_unknown;

  // Of each unit, those that there are not included.
  logic [ALL*NUMBER_BITS-1:0] in_counts;
  logic [ALL*NUMBER_BITS-1:0] out_counts;

  request_scheduler #(
    .UNITS(UNITS), .WIDTH(NUMBER_BITS), .DEPTH(DEPTH), .IO_DEPTH(DEPTH)
  ) scheduler (
    .clk, .reset, .s_valid, .s_ready, .s_unit,
    .s_request(in_counts[NUMBER_BITS*s_unit +: NUMBER_BITS]), .m_valid, .m_ready, .m_request,
    .is_unknown
  );

  wire [LEVEL_BITS-1:0] level;                      // probe scheduler.arrivals.level
  wire [LEVEL_BITS-1:0] taken;                      // probe scheduler.arrivals.taken
  wire [DEPTH*WORD_BITS-1:0] memory;                // probe scheduler.arrivals.memory[*]
  wire [UNITS*LEVEL_BITS-1:0] levels;               // probe scheduler.units[2].queue.level,scheduler.units[1].queue.level,scheduler.units[0].queue.level
  wire [UNITS*LEVEL_BITS-1:0] takens;               // probe scheduler.units[2].queue.taken,scheduler.units[1].queue.taken,scheduler.units[0].queue.taken
  wire [DEPTH*NUMBER_BITS-1:0] memory_0;            // probe scheduler.units[0].queue.memory[*]
  wire [DEPTH*NUMBER_BITS-1:0] memory_1;            // probe scheduler.units[1].queue.memory[*]
  wire [DEPTH*NUMBER_BITS-1:0] memory_2;            // probe scheduler.units[2].queue.memory[*]
  wire [UNITS*DEPTH*NUMBER_BITS-1:0] memories = {memory_2, memory_1, memory_0};
  wire is_moved;                                    // probe scheduler.ready

  wire [WORD_BITS-1:0] front = memory[WORD_BITS * (taken % DEPTH) +: WORD_BITS];
  wire [UNIT_BITS-1:0] front_unit = front[WORD_BITS-1 -: UNIT_BITS];

  always_ff @(posedge clk) begin
    if (s_valid && s_ready) in_counts[NUMBER_BITS*s_unit +: NUMBER_BITS] <=
                              in_counts[NUMBER_BITS*s_unit +: NUMBER_BITS] + 1'b1;
    for (int u = 0; u < UNITS; u++) begin
      if (m_valid[u] && m_ready[u]) out_counts[NUMBER_BITS*u +: NUMBER_BITS] <=
                                      out_counts[NUMBER_BITS*u +: NUMBER_BITS] + 1'b1;
    end
    if (is_unknown) out_counts[NUMBER_BITS*front_unit +: NUMBER_BITS] <=
                      out_counts[NUMBER_BITS*front_unit +: NUMBER_BITS] + 1'b1;
    if (reset) begin
      in_counts <= '0;
      out_counts <= '0;
    end
  end

  for (genvar u = 0; u < ALL; u++) begin : units
    wire [LEVEL_BITS-1:0] queued = u < UNITS ? levels[LEVEL_BITS * (u % UNITS) +: LEVEL_BITS] : '0;
    wire [LEVEL_BITS-1:0] at = takens[LEVEL_BITS * (u % UNITS) +: LEVEL_BITS];
    number_t number;
    logic    is_right;
    always_comb begin
      number = out_counts[NUMBER_BITS*u +: NUMBER_BITS];
      is_right = queued <= DEPTH;
      for (int i = 0; i < DEPTH; i++) begin
        if (i < queued) begin
          if (memories[NUMBER_BITS * (DEPTH * (u % UNITS) + (at + i) % DEPTH) +: NUMBER_BITS] !=
              number) is_right = 1'b0;
          number = number + 1'b1;
        end
      end
      for (int i = 0; i < DEPTH; i++) begin
        if (i < level && memory[WORD_BITS * ((taken + i) % DEPTH) + NUMBER_BITS +: UNIT_BITS] == u)
        begin
          if (memory[WORD_BITS * ((taken + i) % DEPTH) +: NUMBER_BITS] != number) is_right = 1'b0;
          number = number + 1'b1;
        end
      end
      if (number != in_counts[NUMBER_BITS*u +: NUMBER_BITS]) is_right = 1'b0;
      if (started) begin
        assert (is_right);
        if (u < UNITS) begin
          assert (m_valid[u % UNITS] == (queued != '0));
          if (m_valid[u % UNITS]) assert (m_request[NUMBER_BITS * (u % UNITS) +: NUMBER_BITS] ==
                                          out_counts[NUMBER_BITS*u +: NUMBER_BITS]);
          if (level != '0 && front_unit == u) assert (is_moved == (queued != DEPTH));
        end
      end
    end
  end

  always_comb begin
    if (started) begin
      a_level: assert (level <= DEPTH && s_ready == (level != DEPTH));
      a_unknown: assert (is_unknown == (level != '0 && front_unit >= UNITS));
    end
  end

endmodule

`default_nettype wire
