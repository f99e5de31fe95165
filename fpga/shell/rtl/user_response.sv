// Gives what a card answers to the user whom it concerns: a register with a valid line for each.

`default_nettype none

module user_response #(
  parameter int USERS = 3,
  parameter int WIDTH = 137,
  parameter int USER_BITS = USERS < 2 ? 1 : $clog2(USERS)
) (
  input  wire  logic                 clk,
  input  wire  logic                 reset,

  input  wire  logic                 s_valid,
  output logic                       s_ready,
  input  wire  logic [USER_BITS-1:0] s_user,
  input  wire  logic [WIDTH-1:0]     s_data,

  output logic [USERS-1:0]           m_valid,
  input  wire  logic [USERS-1:0]     m_ready,
  output logic [WIDTH-1:0]           m_data
);

  assign s_ready = m_valid == '0 || (m_valid & m_ready) != '0;

  always_ff @(posedge clk) begin
    if (s_ready) begin
      m_valid <= s_valid ? USERS'(1) << s_user : '0;
      m_data <= s_data;
    end
    if (reset) m_valid <= '0;
  end

endmodule

`default_nettype wire
