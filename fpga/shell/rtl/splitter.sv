// Shares the flash interface of a card between users: each has tags of its own.
//
// BlueDBM, section 3.1.2: "Flash Interface Splitter with tag renaming". A command takes a tag of
// the card that is free; a table says whose it is and which tag the user gave it, so what the card
// answers goes there. The tag is free again with the last burst of a read, or an acknowledgement.
//
// A user that takes no answers holds up those of the others: users must have a place for all that
// they have asked for (completion_buffer and host_interface have). A user must not use a tag twice
// at a time; one that does, or sends data that no card has asked for, harms no other: such data
// stays, and `is_stray` says so.

`default_nettype none

module splitter #(
  parameter int USERS = 3            // at least 2
) (
  input  wire  logic                                        clk,
  input  wire  logic                                        reset,

  // The users; flat buses hold user 0 lowest. A bus without an index is for whom `valid` names.
  input  wire  logic [USERS-1:0]                            s_valid,
  output logic [USERS-1:0]                                  s_ready,
  input  wire  logic [USERS*shell_pkg::COMMAND_BITS-1:0]    s_command,
  input  wire  logic [USERS*shell_pkg::USER_TAG_BITS-1:0]   s_tag,

  output logic [USERS-1:0]                                  user_read_valid,
  input  wire  logic [USERS-1:0]                            user_read_ready,
  output logic [shell_pkg::USER_TAG_BITS-1:0]               user_read_tag,
  output shell_pkg::burst_t                                 user_read_burst,

  output logic [USERS-1:0]                                  user_request_valid,  // for write data
  input  wire  logic [USERS-1:0]                            user_request_ready,
  output logic [shell_pkg::USER_TAG_BITS-1:0]               user_request_tag,

  input  wire  logic [USERS-1:0]                            user_write_valid,
  output logic [USERS-1:0]                                  user_write_ready,
  input  wire  logic [USERS*shell_pkg::USER_TAG_BITS-1:0]   user_write_tag,
  input  wire  logic [USERS*shell_pkg::BURST_BITS-1:0]      user_write_burst,

  output logic [USERS-1:0]                                  user_ack_valid,
  input  wire  logic [USERS-1:0]                            user_ack_ready,
  output logic [shell_pkg::USER_TAG_BITS-1:0]               user_ack_tag,
  output logic [shell_pkg::STATUS_BITS-1:0]                 user_ack_status,

  // The card.
  output logic                                              m_valid,
  input  wire  logic                                        m_ready,
  output shell_pkg::command_t                               m_command,
  output logic [shell_pkg::TAG_BITS-1:0]                    m_tag,

  input  wire  logic                                        read_valid,
  output logic                                              read_ready,
  input  wire  logic [shell_pkg::TAG_BITS-1:0]              read_tag,
  input  wire  shell_pkg::burst_t                           read_burst,

  input  wire  logic                                        request_valid,
  output logic                                              request_ready,
  input  wire  logic [shell_pkg::TAG_BITS-1:0]              request_tag,

  output logic                                              write_valid,
  input  wire  logic                                        write_ready,
  output logic [shell_pkg::TAG_BITS-1:0]                    write_tag,
  output shell_pkg::burst_t                                 write_burst,

  input  wire  logic                                        ack_valid,
  output logic                                              ack_ready,
  input  wire  logic [shell_pkg::TAG_BITS-1:0]              ack_tag,
  input  wire  logic [shell_pkg::STATUS_BITS-1:0]           ack_status,

  output logic [USERS-1:0]                                  is_stray
);

  localparam int TAG_BITS = shell_pkg::TAG_BITS;
  localparam int TAGS = 1 << TAG_BITS;
  localparam int USER_TAG_BITS = shell_pkg::USER_TAG_BITS;
  localparam int COMMAND_BITS = shell_pkg::COMMAND_BITS;
  localparam int BURST_BITS = shell_pkg::BURST_BITS;
  localparam int STATUS_BITS = shell_pkg::STATUS_BITS;
  localparam int USER_BITS = USERS < 2 ? 1 : $clog2(USERS);

  if (USERS < 2) begin : check_users
    $error("splitter: USERS is less than 2");
  end

  typedef struct packed {
    logic [USER_BITS-1:0]     user;
    logic [USER_TAG_BITS-1:0] tag;
  } owner_t;

  localparam int OWNER_BITS = USER_BITS + USER_TAG_BITS;

  logic [OWNER_BITS-1:0] owners [TAGS];    // an owner_t: arrays of these are no memories to yosys
  // Of writes: the card has asked for the data, and the last of it has not come.
  logic [TAGS-1:0]       is_open;

  // Commands: users take turns, each command gets a free tag.
  logic                free_valid;
  logic [TAG_BITS-1:0] free_tag;
  logic                may_take;
  logic                take;
  logic [USERS-1:0]    grant;
  owner_t              taker;
  shell_pkg::command_t command;
  logic                is_given_back;
  logic [TAG_BITS-1:0] given_back;

  free_queue #(
    .NUMBERS(TAGS)
  ) free_tags (
    .clk,
    .reset,
    .s_valid(is_given_back),
    .s_number(given_back),
    .m_valid(free_valid),
    .m_ready(take),
    .m_number(free_tag)
  );

  round_robin #(
    .REQUESTS(USERS)
  ) command_turns (
    .clk,
    .reset,
    .request(s_valid),
    .use_grant(may_take),
    .grant
  );

  assign may_take = free_valid && (!m_valid || m_ready);
  assign take = may_take && grant != '0;
  assign s_ready = may_take ? grant : '0;

  always_comb begin
    taker = '0;
    command = '0;
    for (int u = 0; u < USERS; u++) begin
      if (grant[u]) begin
        taker.user = USER_BITS'(u);
        taker.tag = s_tag[USER_TAG_BITS*u +: USER_TAG_BITS];
        command = s_command[COMMAND_BITS*u +: COMMAND_BITS];
      end
    end
  end

  always_ff @(posedge clk) begin
    if (!m_valid || m_ready) begin
      m_valid <= take;
      m_command <= command;
      m_tag <= free_tag;
    end
    if (take) owners[free_tag] <= taker;
    if (reset) m_valid <= 1'b0;
  end

  // Answers. Only one tag a clock can be given back: an acknowledgement waits for a last burst.
  owner_t read_owner;
  owner_t request_owner;
  owner_t ack_owner;
  logic   is_read_over;
  logic   ack_has_place;

  assign read_owner = owners[read_tag];
  assign request_owner = owners[request_tag];
  assign ack_owner = owners[ack_tag];
  assign is_read_over = read_valid && read_ready && read_burst.is_last;
  assign ack_ready = ack_has_place && !is_read_over;
  assign is_given_back = is_read_over || (ack_valid && ack_ready);
  assign given_back = is_read_over ? read_tag : ack_tag;

  user_response #(
    .USERS(USERS),
    .WIDTH(USER_TAG_BITS + BURST_BITS)
  ) reads (
    .clk,
    .reset,
    .s_valid(read_valid),
    .s_ready(read_ready),
    .s_user(read_owner.user),
    .s_data({read_owner.tag, read_burst}),
    .m_valid(user_read_valid),
    .m_ready(user_read_ready),
    .m_data({user_read_tag, user_read_burst})
  );

  user_response #(
    .USERS(USERS),
    .WIDTH(USER_TAG_BITS)
  ) requests (
    .clk,
    .reset,
    .s_valid(request_valid),
    .s_ready(request_ready),
    .s_user(request_owner.user),
    .s_data(request_owner.tag),
    .m_valid(user_request_valid),
    .m_ready(user_request_ready),
    .m_data(user_request_tag)
  );

  user_response #(
    .USERS(USERS),
    .WIDTH(USER_TAG_BITS + STATUS_BITS)
  ) acks (
    .clk,
    .reset,
    .s_valid(ack_valid && !is_read_over),
    .s_ready(ack_has_place),
    .s_user(ack_owner.user),
    .s_data({ack_owner.tag, ack_status}),
    .m_valid(user_ack_valid),
    .m_ready(user_ack_ready),
    .m_data({user_ack_tag, user_ack_status})
  );

  // Data of writes: the card's tag of the user's tag, if that tag is the user's and the card has
  // asked. Users take turns burst by burst.
  logic [USERS-1:0]          is_asked;
  logic [USERS*TAG_BITS-1:0] card_tags;
  logic [USERS-1:0]          write_grant;
  logic                      write_has_place;
  logic                      write_take;
  logic [TAG_BITS-1:0]       granted_tag;
  shell_pkg::burst_t         granted;

  for (genvar u = 0; u < USERS; u++) begin : users
    logic [TAG_BITS-1:0]      renamed [1 << USER_TAG_BITS];
    logic [USER_TAG_BITS-1:0] tag;
    logic [TAG_BITS-1:0]      card_tag;
    owner_t                   owner;

    assign tag = user_write_tag[USER_TAG_BITS*u +: USER_TAG_BITS];
    assign card_tag = renamed[tag];
    assign owner = owners[card_tag];
    assign is_asked[u] = is_open[card_tag] && owner.user == USER_BITS'(u) && owner.tag == tag;
    assign card_tags[TAG_BITS*u +: TAG_BITS] = card_tag;

    always_ff @(posedge clk) begin
      if (take && grant[u]) renamed[taker.tag] <= free_tag;
    end
  end

  round_robin #(
    .REQUESTS(USERS)
  ) write_turns (
    .clk,
    .reset,
    .request(user_write_valid & is_asked),
    .use_grant(write_has_place),
    .grant(write_grant)
  );

  assign is_stray = user_write_valid & ~is_asked;
  assign write_has_place = !write_valid || write_ready;
  assign write_take = write_has_place && write_grant != '0;
  assign user_write_ready = write_has_place ? write_grant : '0;

  always_comb begin
    granted_tag = '0;
    granted = '0;
    for (int u = 0; u < USERS; u++) begin
      if (write_grant[u]) begin
        granted_tag = card_tags[TAG_BITS*u +: TAG_BITS];
        granted = user_write_burst[BURST_BITS*u +: BURST_BITS];
      end
    end
  end

  always_ff @(posedge clk) begin
    if (write_has_place) begin
      write_valid <= write_take;
      write_tag <= granted_tag;
      write_burst <= granted;
    end
    if (request_valid && request_ready) is_open[request_tag] <= 1'b1;
    if (write_take && granted.is_last) is_open[granted_tag] <= 1'b0;
    if (ack_valid && ack_ready) is_open[ack_tag] <= 1'b0;
    if (reset) begin
      write_valid <= 1'b0;
      is_open <= '0;
    end
  end

endmodule

`default_nettype wire
