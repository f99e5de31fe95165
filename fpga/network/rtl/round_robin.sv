// Grants one of the requests. After a grant that was used, the requests behind it come first: a
// request that stays is granted after at most REQUESTS - 1 others.

`default_nettype none

module round_robin #(
  parameter int REQUESTS = 9
) (
  input  wire  logic                clk,
  input  wire  logic                reset,
  input  wire  logic [REQUESTS-1:0] request,
  input  wire  logic                use_grant,   // the grant of this clock is made use of
  output logic [REQUESTS-1:0]       grant        // one hot, or zero when nothing is requested
);

  if (REQUESTS < 2) begin : check_requests
    $error("round_robin: REQUESTS is less than 2");
  end

  // Ones at the requests behind the last grant.
  logic [REQUESTS-1:0] behind;
  logic [REQUESTS-1:0] first;

  assign first = request & behind;
  // x & -x is the lowest one of x.
  assign grant = first != '0 ? first & (~first + 1'b1) : request & (~request + 1'b1);

  always_ff @(posedge clk) begin
    // Ones above the grant: neither it nor what lies below.
    if (use_grant && grant != '0) behind <= ~(grant | (grant - 1'b1));
    if (reset) behind <= '1;
  end

endmodule

`default_nettype wire
