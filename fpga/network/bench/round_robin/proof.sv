// One grant at a time, to a request; a request that stays sees at most REQUESTS - 1 other grants.

`default_nettype none

module proof #(
  parameter int REQUESTS = 9
) (
  input wire logic                clk,
  input wire logic [REQUESTS-1:0] request,
  input wire logic                use_grant
);

  logic started = 1'b0;
  always_ff @(posedge clk) started <= 1'b1;
  wire reset = !started;

  logic [REQUESTS-1:0] grant;

  round_robin #(
    .REQUESTS(REQUESTS)
  ) turns (
    .clk, .reset, .request, .use_grant, .grant
  );

  wire [REQUESTS-1:0] behind;   // probe turns.behind

  // Where the next turn begins: behind the last grant.
  logic [7:0] first;
  logic       is_mask;
  always_comb begin
    first = '0;
    is_mask = 1'b1;
    for (int i = 0; i < REQUESTS; i++) begin
      if (!behind[i]) first = 8'(i + 1);
    end
    for (int i = 1; i < REQUESTS; i++) if (behind[i-1] && !behind[i]) is_mask = 1'b0;
    if (first == REQUESTS) first = '0;
  end

  for (genvar i = 0; i < REQUESTS; i++) begin : waits
    logic [7:0] others;   // grants used by others while this one has been waiting
    always_ff @(posedge clk) begin
      if (!request[i] || (use_grant && grant[i])) others <= '0;
      else if (use_grant && grant != '0) others <= others + 1'b1;
      if (reset) others <= '0;
    end
    wire [7:0] distance = first <= i ? 8'(i) - first : 8'(i + REQUESTS) - first;
    always_comb begin
      if (started) begin
        assert (others < REQUESTS);
        assert (others + distance < REQUESTS);
      end
    end
  end

  // An arbiter that moves on without need would keep the bound, too.
  logic [REQUESTS-1:0] last_behind;
  logic                was_used;
  always_ff @(posedge clk) begin
    last_behind <= behind;
    was_used <= use_grant || reset;
  end

  always_comb begin
    if (started) begin
      a_one: assert ((grant & (grant - 1'b1)) == '0);
      a_asked: assert ((grant & ~request) == '0);
      a_any: assert ((grant != '0) == (request != '0));
      a_mask: assert (is_mask);
    end
  end

  logic started_before = 1'b0;
  always_ff @(posedge clk) started_before <= started;
  always_comb begin
    if (started && started_before && !was_used) a_still: assert (behind == last_behind);
  end

endmodule

`default_nettype wire
