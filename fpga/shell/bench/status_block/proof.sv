// A line is what was last written to it by the endpoint whose it is; reads get the lines of the
// endpoint that reads; each last part, and no other, is one completion, in order; a slot is held up
// only for a completion that has no place, or by another's turn.
//
// The fields are narrow here (bench.toml).

`default_nettype none

module proof #(
  parameter int SLOTS = 2,
  parameter int DEPTH = 2
) (
  input wire logic                                          clk,
  input wire logic [SLOTS-1:0]                              s_valid,
  input wire logic [SLOTS*shell_pkg::ENDPOINT_BITS-1:0]     s_endpoint,
  input wire logic [SLOTS*shell_pkg::AREA_BITS-1:0]         s_line,
  input wire logic [SLOTS-1:0]                              s_is_last,
  input wire logic [SLOTS*shell_pkg::OUTCOME_BITS-1:0]      s_outcome,
  input wire logic                                          read_valid,
  input wire logic [shell_pkg::ENDPOINT_BITS-1:0]           read_endpoint,
  input wire logic [shell_pkg::AREA_BITS-1:0]               read_line,
  input wire logic                                          answer_ready,
  input wire logic                                          over_ready
);

  localparam int ENDPOINT_BITS = shell_pkg::ENDPOINT_BITS;
  localparam int AREA_BITS = shell_pkg::AREA_BITS;
  localparam int OUTCOME_BITS = shell_pkg::OUTCOME_BITS;
  localparam int SEQUENCE_BITS = shell_pkg::SEQUENCE_BITS;
  localparam int LINES = 1 << (ENDPOINT_BITS + AREA_BITS);
  localparam int OVER_BITS = ENDPOINT_BITS + SEQUENCE_BITS;
  localparam int LEVEL_BITS = $clog2(DEPTH) + 1;

  logic started = 1'b0;
  always_ff @(posedge clk) started <= 1'b1;
  wire reset = !started;

  logic [SLOTS-1:0]         s_ready;
  logic                     read_ready;
  logic                     answer_valid;
  shell_pkg::outcome_t      answer;
  logic                     over_valid;
  logic [ENDPOINT_BITS-1:0] over_endpoint;
  logic [SEQUENCE_BITS-1:0] over_sequence;

  status_block #(
    .SLOTS(SLOTS), .DEPTH(DEPTH)
  ) block (
    .clk, .reset, .s_valid, .s_ready, .s_endpoint, .s_line, .s_is_last, .s_outcome, .read_valid,
    .read_ready, .read_endpoint, .read_line, .answer_valid, .answer_ready, .answer, .over_valid,
    .over_ready, .over_endpoint, .over_sequence
  );

  wire [LINES*OUTCOME_BITS-1:0] areas;            // probe block.areas[*]
  wire [LEVEL_BITS-1:0] level;                    // probe block.completions.level
  wire [LEVEL_BITS-1:0] taken;                    // probe block.completions.taken
  wire [DEPTH*OVER_BITS-1:0] memory;              // probe block.completions.memory[*]

  // Our own lines, of each endpoint apart, and completions, the oldest lowest.
  logic [LINES*OUTCOME_BITS-1:0] ours;
  logic [LINES-1:0]              was_written = '0;
  logic [DEPTH*OVER_BITS-1:0]    waiting;
  logic [LEVEL_BITS-1:0]         count;
  shell_pkg::outcome_t           wanted;
  logic                          is_wanted;     // a line that was written was read

  logic                     is_written;
  logic                     is_over;
  logic [ENDPOINT_BITS-1:0] endpoint;
  logic [AREA_BITS-1:0]     line;
  shell_pkg::outcome_t      outcome;
  always_comb begin
    is_written = 1'b0;
    is_over = 1'b0;
    endpoint = '0;
    line = '0;
    outcome = '0;
    for (int s = 0; s < SLOTS; s++) begin
      if (s_valid[s] && s_ready[s]) begin
        is_written = 1'b1;
        is_over = s_is_last[s];
        endpoint = s_endpoint[ENDPOINT_BITS*s +: ENDPOINT_BITS];
        line = s_line[AREA_BITS*s +: AREA_BITS];
        outcome = s_outcome[OUTCOME_BITS*s +: OUTCOME_BITS];
      end
    end
  end
  wire is_taken = over_valid && over_ready;

  always_ff @(posedge clk) begin
    if (is_written) begin
      ours[OUTCOME_BITS * {endpoint, line} +: OUTCOME_BITS] <= outcome;
      was_written[{endpoint, line}] <= 1'b1;
    end
    if (read_valid && read_ready) begin
      wanted <= ours[OUTCOME_BITS * {read_endpoint, read_line} +: OUTCOME_BITS];
      is_wanted <= was_written[{read_endpoint, read_line}];
    end
    if (is_taken) waiting <= waiting >> OVER_BITS;
    if (is_over) waiting[OVER_BITS * (count - is_taken) +: OVER_BITS] <=
                   {endpoint, outcome.sequence_number};
    count <= count + is_over - is_taken;
    if (reset) count <= '0;
  end

  logic is_right;
  always_comb begin
    is_right = count == level && level <= DEPTH;
    for (int i = 0; i < DEPTH; i++) begin
      if (i < level && memory[OVER_BITS * ((taken + i) % DEPTH) +: OVER_BITS] !=
                       waiting[OVER_BITS*i +: OVER_BITS]) is_right = 1'b0;
    end
  end

  wire [SLOTS-1:0] can_go = s_valid & (~s_is_last | {SLOTS{level != DEPTH}});

  // Whether the answer of the last clock was a read's.
  logic answer_pending;
  always_ff @(posedge clk) begin
    answer_pending <= (read_valid && read_ready) || (answer_pending && !answer_ready);
    if (reset) answer_pending <= 1'b0;
  end

  always_comb begin
    for (int i = 0; i < LINES; i++) begin
      if (was_written[i])
        assert (areas[OUTCOME_BITS*i +: OUTCOME_BITS] == ours[OUTCOME_BITS*i +: OUTCOME_BITS]);
    end
    if (started) begin
      a_completions: assert (is_right && over_valid == (count != '0));
      if (over_valid) a_over: assert ({over_endpoint, over_sequence} == waiting[OVER_BITS-1:0]);
      a_answers: assert (answer_valid == answer_pending);
      if (answer_valid && is_wanted) a_answer: assert (answer == wanted);
      a_one: assert ((s_ready & (s_ready - 1'b1)) == '0 && (s_ready & ~can_go) == '0);
      a_progress: assert ((s_ready != '0) == (can_go != '0));
      a_read: assert (read_ready == (!answer_valid || answer_ready));
    end
  end

endmodule

`default_nettype wire
