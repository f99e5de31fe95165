// The status areas of endpoints, which accelerator slots write and the host reads.
//
// Minerva, section III-B: a status has the command's sequence number, and results; the host polls
// it, or is told of the end. The area is that of the endpoint by whom the command came, or by whom
// it is read, which neither chooses: nobody sees another's. A line keeps the sequence number of its
// command, so who polls knows whose outcome it is. A command is over when its last part is, which
// is a completion. Lines outlive a reset, and hold nothing in particular before they are written.

`default_nettype none

module status_block #(
  parameter int SLOTS = 2,           // at least 2
  parameter int DEPTH = 64           // completions that wait; a power of two
) (
  input  wire  logic                                    clk,
  input  wire  logic                                    reset,

  // The slots; slot 0 lowest.
  input  wire  logic [SLOTS-1:0]                          s_valid,
  output logic [SLOTS-1:0]                                s_ready,
  input  wire  logic [SLOTS*shell_pkg::ENDPOINT_BITS-1:0] s_endpoint,
  input  wire  logic [SLOTS*shell_pkg::AREA_BITS-1:0]     s_line,
  input  wire  logic [SLOTS-1:0]                          s_is_last,
  input  wire  logic [SLOTS*shell_pkg::OUTCOME_BITS-1:0]  s_outcome,

  // The host.
  input  wire  logic                                    read_valid,
  output logic                                          read_ready,
  input  wire  logic [shell_pkg::ENDPOINT_BITS-1:0]     read_endpoint,
  input  wire  logic [shell_pkg::AREA_BITS-1:0]         read_line,
  output logic                                          answer_valid,
  input  wire  logic                                    answer_ready,
  output shell_pkg::outcome_t                           answer,

  output logic                                          over_valid,
  input  wire  logic                                    over_ready,
  output logic [shell_pkg::ENDPOINT_BITS-1:0]           over_endpoint,
  output logic [shell_pkg::SEQUENCE_BITS-1:0]           over_sequence
);

  localparam int ENDPOINT_BITS = shell_pkg::ENDPOINT_BITS;
  localparam int AREA_BITS = shell_pkg::AREA_BITS;
  localparam int OUTCOME_BITS = shell_pkg::OUTCOME_BITS;
  localparam int SEQUENCE_BITS = shell_pkg::SEQUENCE_BITS;
  localparam int LINES = 1 << (ENDPOINT_BITS + AREA_BITS);

  if (SLOTS < 2) begin : check_slots
    $error("status_block: SLOTS is less than 2");
  end

  logic [OUTCOME_BITS-1:0]  areas [LINES];     // an outcome_t each
  logic                     has_place;
  logic [SLOTS-1:0]         grant;
  logic [ENDPOINT_BITS-1:0] endpoint;
  logic [AREA_BITS-1:0]     line;
  logic                     is_last;
  shell_pkg::outcome_t      outcome;

  round_robin #(
    .REQUESTS(SLOTS)
  ) turns (
    .clk,
    .reset,
    .request(s_valid & (~s_is_last | {SLOTS{has_place}})),
    .use_grant(1'b1),
    .grant
  );

  assign s_ready = grant;

  always_comb begin
    endpoint = '0;
    line = '0;
    is_last = 1'b0;
    outcome = '0;
    for (int s = 0; s < SLOTS; s++) begin
      if (grant[s]) begin
        endpoint = s_endpoint[ENDPOINT_BITS*s +: ENDPOINT_BITS];
        line = s_line[AREA_BITS*s +: AREA_BITS];
        is_last = s_is_last[s];
        outcome = s_outcome[OUTCOME_BITS*s +: OUTCOME_BITS];
      end
    end
  end

  packet_fifo #(
    .WIDTH(ENDPOINT_BITS + SEQUENCE_BITS),
    .DEPTH(DEPTH)
  ) completions (
    .clk,
    .reset,
    .s_valid(is_last),
    .s_ready(has_place),
    .s_data({endpoint, outcome.sequence_number}),
    .m_valid(over_valid),
    .m_ready(over_ready),
    .m_data({over_endpoint, over_sequence}),
    .level()
  );

  assign read_ready = !answer_valid || answer_ready;

  always_ff @(posedge clk) begin
    if (grant != '0) areas[{endpoint, line}] <= outcome;
    if (read_ready) begin
      answer_valid <= read_valid;
      answer <= areas[{read_endpoint, read_line}];
    end
    if (reset) answer_valid <= 1'b0;
  end

endmodule

`default_nettype wire
