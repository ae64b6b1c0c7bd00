package config

import "slices"

// An Option is one row of the table of options.
type Option struct {
	Env         string   // the environment variable, and the key in the file
	Flag        string   // the flag, without dashes; "" if there is none
	Short       string   // a one-letter flag, or ""
	Aliases     []string // other spellings of Env that are understood
	FlagAliases []string // other spellings of Flag that are understood
	Type        Type
	Default     string
	Meaning     string // for the reference, in full sentences
	Group       Group
	Reason      string   // "" if Herald has it, else why not and what to do instead, as a part of a sentence
	Secret      bool     // messages do not repeat its value
	Effect      Effect   // what a value does while Reason is not ""
	Empty       []Origin // where an empty value is a value; elsewhere it means "not set"

	// set checks value and stores it. Its error says only what would be right: "must be...".
	set func(c *Config, value string) error
}

// Supported reports whether Herald has the option.
func (o Option) Supported() bool { return o.Reason == "" }

// A Type is the kind of value an option takes, as the reference and the help name it.
type Type string

// The types of options.
const (
	Bool         Type = "bool"
	Int          Type = "int"
	Seconds      Type = "seconds"
	Milliseconds Type = "milliseconds"
	String       Type = "string"
	Name         Type = "name"
	Interface    Type = "interface"
	Path         Type = "path"
	Port         Type = "port"
	Endpoint     Type = "host:port"
	URL          Type = "URL"
	List         Type = "list"
)

// A Group is a heading of the reference.
type Group string

// The groups, in the order of the reference.
const (
	groupGeneral      Group = "General"
	groupLinks        Group = "Interfaces and addresses"
	groupLeases       Group = "Leases"
	groupServices     Group = "Services"
	groupClass        Group = "Load balancer class"
	groupPools        Group = "Address pools"
	groupARP          Group = "ARP and NDP"
	groupAPIServer    Group = "API server"
	groupServing      Group = "Metrics and health"
	groupControlPlane Group = "Control-plane VIP"
	groupBGP          Group = "BGP"
	groupRouting      Group = "Routing tables"
	groupDHCP         Group = "DHCP, DNS and UPnP"
	groupEgress       Group = "Egress"
	groupOthers       Group = "Others"
	groupObsolete     Group = "No longer read by kube-vip"
)

// An Effect is what becomes of a value of an option that Herald does not have.
type Effect string

// The effects.
const (
	// Refused: it would change what is announced, or whose traffic passes: an error unless it is the default.
	Refused Effect = "error"
	// Unused: any value but the default is one warning.
	Unused Effect = "warning"
	// NoEffect: no value makes a difference to what Herald does.
	NoEffect Effect = "no effect"
)

// An Origin is where a value comes from. A later one wins.
type Origin int

// The origins, in the order of precedence.
const (
	FromDefault Origin = iota
	FromFlag
	FromFile
	FromEnv
)

// Options is the table of all options: Herald's, then kube-vip's that it only knows of.
var Options = slices.Concat(supported, bgpOptions, routingOptions, unsupported)

func inSection(group Group, options []Option) []Option {
	for i := range options {
		options[i].Group = group
	}
	return options
}

func byName(name string) (Option, bool) {
	return find(func(o Option) bool { return o.Env == name || slices.Contains(o.Aliases, name) })
}

func find(match func(Option) bool) (o Option, ok bool) {
	i := slices.IndexFunc(Options, match)
	if i >= 0 {
		o = Options[i]
	}
	return o, i >= 0
}
